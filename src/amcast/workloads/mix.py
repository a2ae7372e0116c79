"""Messages by a list of destinations with weights: the traffic of a service of one's own.

    mix = "70% home, 25% home+nearest, 5% all"

A part has a weight and destinations joined by +: `home` (the client's home group), `nearest`, `second`, `third` (other
groups by their distance from the home group), `other` (one at random that is not home), `all`, or a group's number.
Weights are percentages that add up to 100, or plain numbers that are compared with each other.

Groups are near each other as their home regions are: with the option `homes` (region -> its groups) these do not depend
on where replicas are, so that several placements can be compared under the same messages. Without it a group is at home
where its first replica is.
"""

import re
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Final

from msgspec import field

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.workloads.base import PayloadConfig, Workload, draw_below, site_of_region

Distance = Callable[[str, str], int]
"""How far a region is from another one."""

NEAR: Final = ("nearest", "second", "third")
WORDS: Final = ("home", *NEAR, "other", "all")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(\s*%)?\s+(\S.*)")

WeightedSet = tuple[float, tuple[str, ...]]
"""A weight, and the words of the destinations."""


class MixConfig(PayloadConfig, frozen=True):
    mix: str = "100% home"
    """Weights and destinations."""
    by_region: dict[str, str] = field(default_factory=dict)
    """Region -> the mix of its clients, where it differs."""
    homes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Region -> the groups that are at home there, and that its clients have as home group, in turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_mix(self.mix)
        for region, mix in self.by_region.items():
            parse_mix(mix, f"by_region.{region}")
        for region, groups in self.homes.items():
            if not groups:
                raise ValueError(f"homes.{region} = []; expected at least one group")


def parse_mix(text: str, where: str = "mix") -> list[WeightedSet]:
    """The parts of a mix; a ValueError names the part and what was expected."""
    found: list[WeightedSet] = []
    percents = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{where} = {text!r}: {part.strip()!r}; expected a weight and destinations: 70% home")
        words = tuple(word.strip() for word in match[3].split("+"))
        for word in words:
            if word not in WORDS and not word.isdigit():
                raise ValueError(f"{where} = {text!r}: {word!r}; expected {', '.join(WORDS)} or a group's number")
        found.append((float(match[1]), words))
        percents.append(match[2] is not None)
    total = sum(weight for weight, _ in found)
    if any(percents) and not all(percents):
        raise ValueError(f"{where} = {text!r}: some weights are percentages; expected all or none")
    if all(percents) and abs(total - 100) > 0.01:
        raise ValueError(f"{where} = {text!r}: the percentages add up to {total:g}; expected 100")
    if total <= 0:
        raise ValueError(f"{where} = {text!r}: the weights add up to {total:g}; expected more than 0")
    return found


class Mix(Workload):
    name = "mix"

    def __init__(self, topology: Topology, seed: int, config: MixConfig, distance: Distance | None = None) -> None:
        super().__init__(topology, seed, config)
        self._size = config.payload
        self._distance = distance or (lambda one, other: 0)
        self._home_region = {group: topology.region(topology.members(group)[0]) for group in topology.groups}
        for region, groups in config.homes.items():
            for group in groups:
                self._check_group(group, f"homes.{region}")
                self._home_region[group] = region
        if config.homes:
            self._assign_homes(config.homes)
        self._near = {group: self._rank_others(group) for group in topology.groups}
        mixes = {"": config.mix, **config.by_region}
        self._parts = {region: parse_mix(mix) for region, mix in mixes.items()}
        self._limits = {region: list(accumulate(w for w, _ in parts)) for region, parts in self._parts.items()}
        for parts in self._parts.values():
            for _, words in parts:
                self._check_words(words)

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        region = site_of_region(self.topology.region(client))
        region = region if region in self._parts else ""
        limits = self._limits[region]
        drawn = random.random() * limits[-1]
        place = next((index for index, limit in enumerate(limits) if drawn < limit), len(limits) - 1)
        home = self.home_group(client)
        chosen: set[GroupId] = set()
        for word in self._parts[region][place][1]:
            chosen.update(self._resolve_word(word, home, random))
        return tuple(sorted(chosen)), self._size

    def _resolve_word(self, word: str, home: GroupId, random: Random) -> tuple[GroupId, ...]:
        match word:
            case "home":
                return (home,)
            case "all":
                return self.topology.groups
            case "other":
                return (self._near[home][draw_below(random, len(self._near[home]))],)
            case _ if word in NEAR:
                return (self._near[home][NEAR.index(word)],)
            case _:
                return (int(word),)

    def _assign_homes(self, homes: dict[str, tuple[int, ...]]) -> None:
        """Gives clients the groups of their region in turn, or those of the nearest region that has some."""
        next_place: dict[str, int] = {}
        for client in self.topology.clients:
            site = site_of_region(self.topology.region(client))
            nearest = min(sorted(homes), key=lambda region: self._distance(site, region) if region != site else -1)
            groups = homes[nearest]
            place = next_place.get(site, 0)
            self.home_groups[client] = groups[place % len(groups)]
            next_place[site] = place + 1

    def _rank_others(self, group: GroupId) -> tuple[GroupId, ...]:
        """The other groups by distance from this one; at equal distance the next ones by number, round the end."""
        groups = self.topology.groups
        place = groups.index(group)
        after = [groups[(place + step) % len(groups)] for step in range(1, len(groups))]
        here = self._home_region[group]
        return tuple(sorted(after, key=lambda other: self._distance(here, self._home_region[other])))

    def _check_words(self, words: tuple[str, ...]) -> None:
        others = len(self.topology.groups) - 1
        for word in words:
            needed = NEAR.index(word) + 1 if word in NEAR else 1 if word == "other" else 0
            if needed > others:
                raise UsageError(f"options of workload mix: {word!r} with {others + 1} groups; expected more groups")
            if word.isdigit():
                self._check_group(int(word), "mix")

    def _check_group(self, group: int, where: str) -> None:
        if group not in self.topology.groups:
            known = ", ".join(str(one) for one in self.topology.groups)
            raise UsageError(f"options of workload mix: {where}: group {group}; expected one of {known}")
