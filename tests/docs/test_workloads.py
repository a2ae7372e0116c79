"""The tables of docs/workloads.md are what the code does: `python -m tests.docs.test_workloads` prints them."""

from collections import Counter

import pytest

from amcast.kernel.topology import Topology
from amcast.simulation.inputs.environments import load_environments
from amcast.workloads.catalogue import WORKLOADS, build_workload
from tests import ROOT

PAGE = ROOT / "docs" / "workloads.md"
SEED, DRAWS = 1, 20_000

CASES: list[tuple[str, dict[str, object]]] = [
    ("micro", {"destinations": [1, 4]}),
    ("convoy", {}),
    ("tpcc", {"global_share": 0.1}),
    ("tpcc", {"global_share": 0.5}),
    ("gtpcc", {"locality": 0.9}),
    ("gtpcc", {"locality": 0.95}),
    ("gtpcc", {"locality": 0.99}),
    ("gtpcc-text", {"locality": 0.9}),
    ("gtpcc-text", {"locality": 0.99}),
    ("social", {}),
    ("thesis", {"sets": "D2"}),
    ("thesis", {"sets": "D3"}),
    ("mix", {"mix": "70% home, 25% home+nearest, 5% all"}),
]


def names_table() -> str:
    rows = ["| name | messages go to | groups | source | options beyond the common ones |", "|---|---|---|---|---|"]
    common = set(WORKLOADS["micro"].config.__mro__[2].__struct_fields__)
    for spec in WORKLOADS.values():
        blank = spec.config()
        own = [f"`{key} = {plain(getattr(blank, key))}`" for key in blank.__struct_fields__ if key not in common]
        if spec.config().outstanding != 1:
            own.append(f"`outstanding = {blank.outstanding}`")
        rows.append(f"| {spec.name} | {spec.summary} | {spec.groups or 'any'} | {spec.source} | {', '.join(own)} |")
    return "\n".join(rows)


def plain(value: object) -> str:
    """As TOML writes it."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def measured_table() -> str:
    rows = [
        "| workload | options | 1 | 2 | 3 | 4 or more | with home | mean bytes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, options in CASES:
        topology = Topology.grid(WORKLOADS[name].groups or 8, 1, 48)
        made = build_workload(name, topology, SEED, options)
        clients = [topology.clients[n % 48] for n in range(DRAWS)]
        draws = [(made.home_group(client), made.draw(client)) for client in clients]
        counts = Counter(min(len(draw.destinations), 4) for _, draw in draws)
        shares = " | ".join(f"{100 * counts[k] / DRAWS:.2f} %" for k in (1, 2, 3, 4))
        home = sum(home in draw.destinations for home, draw in draws) / DRAWS
        size = sum(draw.size for _, draw in draws) / DRAWS
        settings = ", ".join(f"{key} = {plain(value)}" for key, value in options.items())
        rows.append(f"| {name} | {settings} | {shares} | {100 * home:.1f} % | {size:.1f} |")
    return "\n".join(rows)


def environments_table() -> str:
    rows = [
        "| name | what | delays as printed, ms | leaders | sd | bandwidth | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, facts in load_environments().items():
        delays = [f"inside {facts.inside_ms:g}"] if facts.inside_ms else []
        delays += [f"{one}-{other} {ms:g}" for one, other, ms in facts.between_ms]
        delays += [f"{what} {ms:g}" for what, ms in (("sites", facts.site_ms), ("across", facts.across_ms)) if ms]
        if facts.client_ms is not None:
            delays.append(f"client {facts.client_ms:g}")
        if facts.matrix:
            delays.append(f"`{facts.matrix}`")
        delays = delays or ["those of the plan"]
        bandwidth = f"{facts.bandwidth:,} B/s".replace(",", " ") if facts.bandwidth else "-"
        rows.append(
            f"| {name} | {facts.summary} | {facts.delays}: {', '.join(delays)} | {facts.leaders or '-'} |"
            f" {facts.sd_percent:g} % | {bandwidth} | {facts.source} |"
        )
    return "\n".join(rows)


def readings() -> str:
    return "\n".join(f"- {name}: {note}" for name, facts in load_environments().items() for note in facts.notes)


TABLES = {"names": names_table, "measured": measured_table, "environments": environments_table, "readings": readings}


@pytest.mark.parametrize("table", TABLES)
def test_page_has_generated_table(table: str) -> None:
    made = TABLES[table]()
    assert made in PAGE.read_text(encoding="utf-8"), f"docs/workloads.md: expected this {table} table:\n{made}"


def test_every_documented_workload_was_measured() -> None:
    assert {name for name, _ in CASES} == set(WORKLOADS)


if __name__ == "__main__":
    for make in TABLES.values():
        print(make(), end="\n\n")
