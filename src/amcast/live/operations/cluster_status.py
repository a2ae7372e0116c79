"""Status of all nodes of a cluster, and what the answers show together."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import MessageId
from amcast.live.config.cluster import Cluster
from amcast.live.membership.topology_follower import refresh_cluster
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetNodeStatus, NodeStatus

POLL_S: Final = 0.2

NodeAnswers = dict[str, dict[str, Any]]
"""Node name -> status; a node that does not answer has the field "error" only."""


def fetch_current(cluster: Cluster, client: str | None, needed: bool = False) -> Cluster:
    """The cluster with the topology that its nodes know, since its members may have changed after the file was written.
    If no node answers: the cluster as the file describes it, or an error if `needed`."""
    known = asyncio.run(refresh_cluster(cluster, _rpc_client(cluster, client)))
    if known is None and needed:
        raise CannotTellError(
            f"no node of {cluster.file} answers with configuration {cluster.topology.configuration} or a later one;"
            " expected at least one running node"
        )
    return known or cluster


def fetch_statuses(cluster: Cluster, client: str | None, message: MessageId | None = None) -> NodeAnswers:
    """Requests the status of every node, or what a message waits for there."""
    return asyncio.run(_ask_all(_rpc_client(cluster, client), cluster, message))


def wait_until_ready(cluster: Cluster, client: str | None, nodes: list[str], timeout_s: float) -> NodeAnswers:
    """Requests the status until these nodes are ready or the time is over."""
    rpc = _rpc_client(cluster, client)
    deadline = time.monotonic() + timeout_s
    while True:
        answers = asyncio.run(_ask_all(rpc, cluster, None))
        if all(answers[node].get("ready") for node in nodes) or time.monotonic() > deadline:
            return answers
        time.sleep(POLL_S)


def _rpc_client(cluster: Cluster, client: str | None) -> RpcClient:
    if client is None and cluster.security.mode == "tls":
        operators = [known.name for known in cluster.clients.values() if known.operate]
        client = operators[0] if operators else None
    return RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))


async def _ask_all(rpc: RpcClient, cluster: Cluster, message: MessageId | None) -> NodeAnswers:
    names = cluster.nodes()

    async def request(name: str) -> dict[str, Any]:
        try:
            reply = await rpc.request(names[name], GetNodeStatus(message))
        except NoAnswerError as error:
            return {"error": str(error)}
        if not isinstance(reply, NodeStatus):
            return {"error": f"a reply of type {type(reply).__name__}; expected NodeStatus"}
        status: dict[str, Any] = msgspec.json.decode(reply.json)
        return status

    return dict(zip(names, await asyncio.gather(*(request(name) for name in names)), strict=True))


def restart_all(
    cluster: Cluster,
    client: str | None,
    restart: Callable[[str], None],
    wait_s: float,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Restarts every node, one at a time: the next only when all are ready again. Leaders come last in their groups, so
    that each group changes its leader once."""
    for name in restart_order(_require_all_ready(cluster, client, wait_s)):
        report(f"restarting {name}")
        before = fetch_statuses(cluster, client)[name].get("incarnation", -1)
        restart(name)
        deadline = time.monotonic() + wait_s
        while fetch_statuses(cluster, client)[name].get("incarnation", -1) <= before:
            if time.monotonic() > deadline:
                raise CannotTellError(
                    f"{name} has not begun a new incarnation within {wait_s} s; the rolling restart stops"
                )
            time.sleep(POLL_S)
        _require_all_ready(cluster, client, wait_s)


def restart_order(answers: NodeAnswers) -> list[str]:
    """Nodes group by group, followers first."""

    def is_leader(name: str) -> bool:
        return bool(answers[name]["protocol_status"].get("leader") == answers[name]["process"])

    return sorted(answers, key=lambda name: (answers[name]["group"], is_leader(name), answers[name]["process"]))


def _require_all_ready(cluster: Cluster, client: str | None, wait_s: float) -> NodeAnswers:
    answers = wait_until_ready(cluster, client, list(cluster.nodes()), wait_s)
    for name, status in answers.items():
        if not status.get("ready"):
            reason = status.get("error") or ", ".join(status["not_ready_reasons"])
            raise CannotTellError(f"{name} is not ready after {wait_s} s: {reason}; the rolling restart stops")
    return answers


def add_lags(answers: NodeAnswers) -> NodeAnswers:
    """Adds to every status how far the node is behind the furthest member of its group."""
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
    """The advice of all nodes, each sentence once."""
    return list(dict.fromkeys(line for status in answers.values() for line in status.get("advice", ())))


def late_processes(answers: NodeAnswers) -> list[str]:
    """The processes that a message waits for, those first that most nodes wait for."""
    counts: dict[int, int] = {}
    for answer in answers.values():
        for phase in answer.get("phases", ()):
            for process in () if phase["is_done"] else phase["waiting_for"]:
                counts[process] = counts.get(process, 0) + 1
    return [str(process) for process, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
