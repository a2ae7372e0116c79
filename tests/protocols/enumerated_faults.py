"""Faults after every step of a few conflicting multicasts, one run per step, for groups with a leader."""

from collections.abc import Callable, Iterator

from tests.protocols.stage import Stage

RESTARTS = ("forever", "with its disk", "without memory")


def start_scene(name: str) -> Stage:
    """Two conflicting global messages and a local one, from two clients."""
    stage = Stage(name)
    stage.multicast(0, 0, 1)
    stage.multicast(1, 0, 1)
    stage.multicast(1, 0)
    return stage


def interrupt_each_step(name: str, every: int = 1) -> Iterator[tuple[int, Stage]]:
    """The scene, stopped after each of its steps; after the caller's fault it runs to its end and is checked."""
    for step in range(0, start_scene(name).finish(), every):
        stage = start_scene(name)
        stage.steps(step)
        yield step, stage
        stage.finish()
        stage.check()


def crash_leader(name: str, restart: str) -> None:
    for _, stage in interrupt_each_step(name):
        stage.crash(0)
        stage.suggest_leader(0, 1)
        if restart != "forever":
            stage.steps(5)
            stage.recover(0, amnesia=restart == "without memory")


def crash_one_member_per_group(name: str) -> None:
    for step, stage in interrupt_each_step(name):
        for group in stage.topology.groups:
            members = stage.topology.members(group)
            crashed = members[step % len(members)]
            stage.crash(crashed)
            stage.suggest_leader(group, next(member for member in members if member != crashed))


def restart_all_servers(name: str) -> None:
    """After every disk has a record: before, an empty disk means lost memory."""
    for _, stage in interrupt_each_step(name):
        while any(not stage.world.disks[server].records for server in stage.topology.servers):
            assert stage.step()
        stage.crash(*stage.topology.servers)
        stage.recover(*stage.topology.servers)


def suggest_rival_leaders(name: str) -> None:
    for _, stage in interrupt_each_step(name, every=3):
        stage.suggest_leader(0, 1, 1)
        stage.suggest_leader(1, 5, 5)
        stage.steps(12)
        stage.suggest_leader(0, 0, 0)
        stage.steps(30)
        stage.suggest_leader(0, 2)
        stage.suggest_leader(1, 3)


def reset_links(name: str) -> None:
    for _, stage in interrupt_each_step(name):
        stage.reset_link(0, 3)
        stage.reset_link(0, 1)
        stage.reset_link(4, 0)


FAULTS: tuple[Callable[[str], None], ...] = (
    crash_one_member_per_group,
    restart_all_servers,
    suggest_rival_leaders,
    reset_links,
)


def repeat_request(name: str) -> None:
    """A client repeats the request for a delivered message: it gets replies, and nothing is delivered again."""
    stage = Stage(name)
    id = stage.multicast(0, 0, 1)
    stage.finish()
    stage.steps(200)
    message = stage.multicasts[id]
    client = stage.world.processes[message.sender]
    client.on_submit(message)
    stage.world.resolved.clear()
    for effect in client.step((), stage.world.now):
        stage.world._execute(message.sender, effect)
    stage.finish()
    assert stage.world.resolved == [id]
    assert all(stage.world.history[process] == [id] for process in stage.topology.servers)
