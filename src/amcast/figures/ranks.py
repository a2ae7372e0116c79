"""Which protocol answers first: one sentence per load, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from amcast.figures.measured_settings import MIN_SEEDS, MeasuredSettings, Setting, describe_fields, short_name

MS: Final = 1e6
SENTENCES: Final = 8
LATENCY: Final = "latency_ns_p50"


@dataclass(frozen=True)
class Ranking:
    """The protocols of one facet and one load, the fastest first."""

    facet: str
    load: str
    """The load in words; empty if none varies."""
    settings: tuple[Setting, ...]

    def describe(self) -> str:
        """One sentence: who answers first, by how much, and whether the seeds show it."""
        first, second = self.settings[:2]
        best, next_best = (setting.row[LATENCY] / MS for setting in (first, second))
        where = ", ".join(part for part in (self.facet, self.load) if part)
        begin = f"With {where}, " if where else "For this load, "
        numbers = f"median {best:.3g} against {next_best:.3g} ms"
        if next_best - best < 0.005 * best:
            return f"{begin}{first.protocol} and {second.protocol} answer equally fast ({numbers})."
        text = f"{begin}{first.protocol} answers {next_best - best:.2g} ms earlier than the next, {second.protocol}"
        return f"{text} ({numbers}{self._describe_certainty(first, second)})."

    @staticmethod
    def _describe_certainty(first: Setting, second: Setting) -> str:
        high, low = first.interval(LATENCY)[1], second.interval(LATENCY)[0]
        if high is None or low is None:
            return f"; fewer than {MIN_SEEDS} seeds: no interval"
        return "; the 95 % intervals are apart" if high < low else "; the 95 % intervals overlap: it may be chance"


def rank_protocols(measured: MeasuredSettings) -> list[Ranking]:
    """A ranking for every facet and load with at least two protocols."""
    found: dict[tuple[str, str], list[Setting]] = {}
    for setting in measured.settings:
        if setting.row[LATENCY] is None:
            continue
        load = f"{short_name(measured.load)} {setting[measured.load]}" if measured.load else ""
        found.setdefault((describe_fields(setting, measured.free_fields), load), []).append(setting)
    rankings = []
    for (facet, load), settings in found.items():
        settings.sort(key=lambda setting: (setting.row[LATENCY], setting.protocol))
        if len({setting.protocol for setting in settings}) > 1:
            rankings.append(Ranking(facet, load, tuple(settings)))
    return rankings


def describe_rankings(rankings: Sequence[Ranking]) -> list[str]:
    """The sentences of a page."""
    sentences = [ranking.describe() for ranking in rankings[:SENTENCES]]
    if len(rankings) > SENTENCES:
        sentences.append(f"and {len(rankings) - SENTENCES} more combinations, in the tables")
    if rankings:
        sentences.append(
            "Earlier is not better in every respect: protocols differ in what they survive and promise"
            " (`amcast protocols`)."
        )
    return sentences
