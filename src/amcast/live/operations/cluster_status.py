"""An operator's questions to all nodes of a cluster at once, and what their answers say together."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import MessageId
from amcast.live.config.cluster import Cluster
from amcast.live.membership import topology_follower as moving
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.server import GetNodeStatus, NodeStatus

POLL_S: Final = 0.2

NodeAnswers = dict[str, dict[str, Any]]
"""By node; who does not answer has the field "error" only."""


def fetch_current(cluster: Cluster, client: str | None, needed: bool = False) -> Cluster:
    """The cluster as its nodes know it: its members may have changed since the file was written. If none of them
    answers, as the file tells it; or a sentence, if that is not good enough."""
    found = asyncio.run(moving.refresh_cluster(cluster, _rpc_client(cluster, client)))
    if found is None and needed:
        raise CannotTellError(
            f"no node of {cluster.file} says who is there in topology {cluster.topology.configuration} or a later one;"
            " expected at least one that runs"
        )
    return found or cluster


def fetch_statuses(cluster: Cluster, client: str | None, message: MessageId | None = None) -> NodeAnswers:
    """Ask every node how it is, or what a message waits for there."""
    return asyncio.run(_ask_all(_rpc_client(cluster, client), cluster, message))


def wait_until_ready(cluster: Cluster, client: str | None, nodes: list[str], timeout_s: float) -> NodeAnswers:
    """Ask until these nodes are ready, or the time is over."""
    asker = _rpc_client(cluster, client)
    deadline = time.monotonic() + timeout_s
    while True:
        answers = asyncio.run(_ask_all(asker, cluster, None))
        if all(answers[node].get("ready") for node in nodes) or time.monotonic() > deadline:
            return answers
        time.sleep(POLL_S)


def _rpc_client(cluster: Cluster, client: str | None) -> RpcClient:
    if client is None and cluster.security.mode == "tls":
        operators = [known.name for known in cluster.clients.values() if known.operate]
        client = operators[0] if operators else None
    return RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))


async def _ask_all(asker: RpcClient, cluster: Cluster, message: MessageId | None) -> NodeAnswers:
    names = cluster.nodes()

    async def one(name: str) -> dict[str, Any]:
        try:
            answer = await asker.request(names[name], GetNodeStatus(message))
        except NoAnswerError as error:
            return {"error": str(error)}
        if not isinstance(answer, NodeStatus):
            return {"error": f"an answer of kind {type(answer).__name__}; expected Inspected"}
        found: dict[str, Any] = msgspec.json.decode(answer.json)
        return found

    return dict(zip(names, await asyncio.gather(*(one(name) for name in names)), strict=True))


def restart_all(
    cluster: Cluster,
    client: str | None,
    restart: Callable[[str], None],
    wait_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Restart every node, one at a time: the next only when all are ready again. Leaders come last in their groups, so
    that each group changes its leader once."""
    for name in restart_order(_require_all_ready(cluster, client, wait_s)):
        say(f"restarting {name}")
        before = fetch_statuses(cluster, client)[name].get("incarnation", -1)
        restart(name)
        deadline = time.monotonic() + wait_s
        while fetch_statuses(cluster, client)[name].get("incarnation", -1) <= before:
            if time.monotonic() > deadline:
                raise CannotTellError(
                    f"{name} has not begun a new incarnation within {wait_s} s; the rolling restart ends here"
                )
            time.sleep(POLL_S)
        _require_all_ready(cluster, client, wait_s)


def restart_order(answers: NodeAnswers) -> list[str]:
    """Group by group, followers first."""

    def leads(name: str) -> bool:
        return bool(answers[name]["protocol_status"].get("leader") == answers[name]["process"])

    return sorted(answers, key=lambda name: (answers[name]["group"], leads(name), answers[name]["process"]))


def _require_all_ready(cluster: Cluster, client: str | None, wait_s: float) -> NodeAnswers:
    answers = wait_until_ready(cluster, client, list(cluster.nodes()), wait_s)
    for name, status in answers.items():
        if not status.get("ready"):
            why = status.get("error") or ", ".join(status["not_ready_reasons"])
            raise CannotTellError(f"{name} is not ready after {wait_s} s: {why}; the rolling restart ends here")
    return answers


def add_lags(answers: NodeAnswers) -> NodeAnswers:
    """To every status, how far the node is behind the furthest member of its group."""
    furthest: dict[int, int] = {}
    for status in answers.values():
        if "error" not in status:
            position = status["protocol_status"].get("position", 0)
            furthest[status["group"]] = max(furthest.get(status["group"], 0), position)
    for status in answers.values():
        if "error" not in status:
            status["lag"] = furthest[status["group"]] - status["protocol_status"].get("position", 0)
    return answers


def collect_advice(answers: NodeAnswers) -> list[str]:
    """What the operator must do, each thing once, whichever nodes say so."""
    return list(dict.fromkeys(line for status in answers.values() for line in status.get("advice", ())))


def late_processes(answers: NodeAnswers) -> list[str]:
    """From what the nodes say about one message: who is late, those first whom most nodes wait for."""
    counts: dict[int, int] = {}
    for answer in answers.values():
        for phase in answer.get("phases", ()):
            for process in () if phase["is_done"] else phase["waiting_for"]:
                counts[process] = counts.get(process, 0) + 1
    return [str(process) for process, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
