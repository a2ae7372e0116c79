"""File descriptors of a node: a node out of descriptors could not open the next segment of its log, nor answer its
group or its operator. The node therefore raises its limit as far as the system lets it, reserves what it needs itself,
and gives only the rest to clients."""

import resource
from typing import Final, NamedTuple

from amcast.kernel.errors import UsageError
from amcast.live.limits import Limits
from amcast.live.server.http import MAX_CONNECTIONS
from amcast.live.wire.listener import ACCEPTS_PER_TURN
from amcast.live.wire.network import Network
from amcast.live.wire.quotas import REQUEST_PLACES

OWN: Final = 48
"""Descriptors of the node itself: log, trace, event loop, listeners, libraries."""
PER_SERVER: Final = 3
"""For each server: a link, a connection that replaces it, a request."""
LEAST_CLIENTS: Final = 16
"""A node that could serve fewer clients does not start."""
MAX_LIMIT: Final = 1 << 20


class DescriptorBudget(NamedTuple):
    """How a limit of descriptors is divided."""

    limit: int
    pending: int
    """Connections that have not identified themselves."""
    clients: int
    """Connections of clients and subscribers."""


def plan_descriptors(limit: int, servers: int, limits: Limits) -> DescriptorBudget:
    """Divides a limit of descriptors; the error says which limit is needed."""
    reserved = OWN + PER_SERVER * servers + MAX_CONNECTIONS + ACCEPTS_PER_TURN + REQUEST_PLACES
    pending = min(limits.pending_connections, max(limit // 8, 1))
    clients = limit - reserved - pending
    if clients < LEAST_CLIENTS:
        needed = (reserved + LEAST_CLIENTS) * 8 // 7 + 1
        raise UsageError(
            f"the limit of open files (RLIMIT_NOFILE) is {limit}; expected at least {needed}: {reserved} are reserved"
            f" for the log, {servers} servers and operators (ulimit -n, or LimitNOFILE of the unit)"
        )
    return DescriptorBudget(limit, pending, clients)


def raise_descriptor_limit() -> int:
    """Raises the soft limit of this process to the hard one, as far as a node can use it; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        except (OSError, ValueError):
            return soft
    return MAX_LIMIT if soft == resource.RLIM_INFINITY else soft


def reserve_descriptors(network: Network, servers: int, limits: Limits) -> DescriptorBudget:
    """Limits pending connections and those of clients to what the limit of this process leaves for them."""
    budget = plan_descriptors(raise_descriptor_limit(), servers, limits)
    network.pending.lower_limit(budget.pending)
    network.quotas.limit_total(budget.clients, f"the limit of {budget.limit} open files (RLIMIT_NOFILE)")
    return budget
