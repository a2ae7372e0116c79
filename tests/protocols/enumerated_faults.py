"""Faults at every step of a few conflicting multicasts, one run per step: for protocols whose groups have a leader."""

from collections.abc import Callable, Iterator

from tests.protocols.stage import Stage

WAYS = ("for ever", "with its disk", "without memory")


def scene(name: str) -> Stage:
    """Two conflicting global messages and a local one, from two clients."""
    stage = Stage(name)
    stage.multicast(0, 0, 1)
    stage.multicast(1, 0, 1)
    stage.multicast(1, 0)
    return stage


def interrupted(name: str, every: int = 1) -> Iterator[tuple[int, Stage]]:
    """The scene, stopped after each of its steps; what the caller leaves is played to its end and checked."""
    for moment in range(0, scene(name).finish(), every):
        stage = scene(name)
        stage.steps(moment)
        yield moment, stage
        stage.finish()
        stage.check()


def leader_crashes(name: str, way: str) -> None:
    for _, stage in interrupted(name):
        stage.crash(0)
        stage.lead(0, 1)
        if way != "for ever":
            stage.steps(5)
            stage.recover(0, amnesia=way == "without memory")


def one_of_every_group_crashes(name: str) -> None:
    for moment, stage in interrupted(name):
        for group in stage.topology.groups:
            members = stage.topology.members(group)
            gone = members[moment % len(members)]
            stage.crash(gone)
            stage.lead(group, next(member for member in members if member != gone))


def everybody_restarts(name: str) -> None:
    """Once the disks know that they were used: before, an empty disk is a lost memory."""
    for _, stage in interrupted(name):
        while any(not stage.world.disks[server].records for server in stage.topology.servers):
            assert stage.step()
        stage.crash(*stage.topology.servers)
        stage.recover(*stage.topology.servers)


def rivals_lead(name: str) -> None:
    for _, stage in interrupted(name, every=3):
        stage.lead(0, 1, 1)
        stage.lead(1, 5, 5)
        stage.steps(12)
        stage.lead(0, 0, 0)
        stage.steps(30)
        stage.lead(0, 2)
        stage.lead(1, 3)


def links_begin_anew(name: str) -> None:
    for _, stage in interrupted(name):
        stage.renew(0, 3)
        stage.renew(0, 1)
        stage.renew(4, 0)


FAULTS: tuple[Callable[[str], None], ...] = (
    one_of_every_group_crashes,
    everybody_restarts,
    rivals_lead,
    links_begin_anew,
)


def asks_again(name: str) -> None:
    """A client asks again for what was delivered: it is answered, and nothing is delivered again."""
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
