"""Faults of a replicated cluster of real processes: no acknowledged message is lost, duplicated or reordered.

Each play goes through several faults, because starting six processes takes longer than any of them.
"""

import asyncio
import random
import resource
import signal
from pathlib import Path

import pytest

from amcast.live.config.cluster import format_toml
from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.torture.proxies import Proxies, between
from amcast.protocols.catalogue import CATALOGUE
from tests.live.fault_scene import CAMPAIGN, EVERYBODY, GROUPS, Scene, staged

pytestmark = [pytest.mark.live, pytest.mark.slow]

SERVERS = range(6)
PAUSE_S = 10.0 if CAMPAIGN else 1.0
RESTARTING = sorted(name for name, spec in CATALOGUE.items() if "recovery" in spec.claims.faults)
PROTOCOLS = RESTARTING if CAMPAIGN else ["primcast"]


def test_leader_without_memory_recovers_state_from_members(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.kill("orders/1")
        await scene.more(50)
        await scene.start("orders/1")

    staged(tmp_path, play, durability="memory", reads_all=True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_killed_minorities_and_killed_cluster_recover_from_logs(tmp_path: Path, protocol: str) -> None:
    async def play(scene: Scene) -> None:
        for victims in (("orders/1",), ("orders/3", "stock/1"), ("stock/1", "stock/2", "stock/3"), EVERYBODY):
            await scene.kill(*victims)
            if len(victims) < 3:
                await scene.more(30)
            await scene.start(*victims)
            await scene.more(30)

    staged(tmp_path, play, protocol=protocol)


def test_full_disk_stops_one_replica_and_fsync_survives_kill_of_all(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.payload = bytes(4000)
        resource.prlimit(scene.running.pid("orders/1"), resource.RLIMIT_FSIZE, (300_000, 300_000))
        codes: list[int] = []
        await scene.do(lambda: codes.append(scene.running.wait_for_exit("orders/1", 60)))
        assert codes == [1]
        assert "cannot be written any more: [Errno 27] File too large" in scene.running.last_log_line("orders/1")
        scene.payload = b"x"
        await scene.more(30)
        await scene.start("orders/1")
        await scene.more(30)
        await scene.kill(*EVERYBODY)
        await scene.start(*EVERYBODY)

    staged(tmp_path, play, durability="fsync")


def test_paused_slow_and_absent_replicas_do_not_violate_order(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.running.signal("orders/1", signal.SIGSTOP)
        await scene.more(60)
        await asyncio.sleep(PAUSE_S)
        scene.running.signal("orders/1", signal.SIGCONT)
        await scene.more(30)
        await scene.kill("orders/3")
        for _ in range(20):
            scene.running.signal("stock/2", signal.SIGSTOP)
            await asyncio.sleep(0.08)
            scene.running.signal("stock/2", signal.SIGCONT)
            await asyncio.sleep(0.01)
        await scene.more(250)
        await scene.start("orders/3")
        await scene.logged("orders/3", "installed a snapshot")
        await scene.kill("stock/3")
        await scene.more(30)

    found = staged(tmp_path, play, options={"keep": 16}, reads_all=True)
    crashed = dict(zip(found.processes["process"], found.processes["crashed_at_ns"], strict=True))
    assert [process for process, at_ns in crashed.items() if at_ns is not None] == [5]
    assert sorted(crashed) == [*SERVERS, 100, 101]


def test_jumping_clocks_do_not_violate_order(tmp_path: Path) -> None:
    skew = tmp_path / "skew"
    skew.mkdir()

    async def play(scene: Scene) -> None:
        for node, seconds in (("orders/1", 3600), ("stock/2", -7200), ("orders/2", 86400), ("orders/1", -3600)):
            (skew / node.replace("/", "-")).write_text(str(seconds))
            await asyncio.sleep(0.1)
            await scene.more(30)
        await scene.kill("orders/1")
        await scene.more(30)
        await scene.start("orders/1")

    staged(tmp_path, play, protocol="primcast-hc", skew=skew, reads_all=True)


def test_cut_and_frozen_links_heal(tmp_path: Path) -> None:
    ports = find_free_ports(12)
    places = [(("127.0.0.1", ports[n]), ("127.0.0.1", ports[6 + n])) for n in SERVERS]
    text = format_toml(
        {
            "name": "local",
            "durability": "os",
            "security": {"mode": "plain"},
            "limits": {"heartbeat_timeout_s": 1.0, "heartbeat_s": 0.1, "reconnect_max_s": 0.2},
            "trace": {"mode": "full", "folder": "run"},
        }
    )
    for group, name in enumerate(GROUPS):
        inside = places[3 * group : 3 * group + 3]
        rows = ", ".join(f'{{ address = "{_said(proxy)}", listen = "{_said(node)}" }}' for proxy, node in inside)
        text += f"[groups.{name}]\nreplicas = [{rows}]\n"
    wires = Proxies({n: places[n][0] for n in SERVERS}, {n: places[n][1] for n in SERVERS})
    chance = random.Random(8)

    async def play(scene: Scene) -> None:
        wires.cut(between([0], SERVERS))
        await scene.more(50)
        wires.heal()
        await scene.more(30)
        wires.freeze(between((0, 1, 2), (3, 4, 5)))
        await asyncio.sleep(2.5)
        wires.heal()
        await scene.more(30)
        for _ in range(30):
            wires.cut([frozenset(chance.sample(SERVERS, 2))])
            await asyncio.sleep(0.05)
            wires.heal()
        assert wires.cuts > 10

    staged(tmp_path, play, config=text, around=wires, reads_all=True)


def _said(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
