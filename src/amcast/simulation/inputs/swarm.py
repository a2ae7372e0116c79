"""Swarm testing: each seed draws the shape of its run, as far as a plan leaves it open.

A search that makes every run alike finds what such a run can show, and nothing else, however many seeds it has: twelve
messages never fill a log of 256, three replicas never show a quorum of two. Here a seed draws how many groups,
replicas, clients and messages there are, which faults happen, whether processes are whole nodes, whether these are
gateways, whether a member is added, and the options of the protocol, with small limits. What the plan names is fixed.

The result is an ordinary plan. A failing seed's script carries it, so that replay needs neither the seed nor this
module. (Groce et al., "Swarm testing", ISSTA 2012.)
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from amcast.kernel.config import MILLISECOND, SearchValues
from amcast.kernel.spec import FAULTS, Claims, Spec
from amcast.kernel.topology import MAX_GROUPS
from amcast.simulation.inputs.random_streams import make_stream

GROUPS: Final = {1: 15, 2: 32, 3: 30, 4: 12, 5: 5, 6: 3, 7: 3}
REPLICAS: Final = {1: 12, 2: 8, 3: 53, 4: 7, 5: 20}
MESSAGES: Final = {1: 2, 4: 8, 12: 68, 30: 18, 100: 3, 150: 1}
"""Weights. Most runs are small, because a seed that costs a tenth is worth ten."""
MAX_SERVERS: Final = {150: 6, 100: 9, 30: 12, 12: 15, 4: 21, 1: 21}
"""The most servers of a run, by its messages: long runs are runs of few processes."""
AUDITED_GROUPS: Final = {2: 16, 3: 42, 4: 30, 5: 12}
"""Weights of the number of groups where answers promise real-time order, which chains over several groups violate."""
REAL_TIME_SHARE: Final = 0.15
"""How many runs answer in real-time order, of those that may."""
TIMEOUTS: Final = {"repair_ns": (20, 40), "retry_ns": (20, 40)}
"""Options of protocols, in message delays: with those of live clusters a healed run would wait for hundreds of
heartbeats."""
BATCHES: Final = (1, 1, 2, 5, 64)
"""Values of the option `batch`: with the default no short run sends what a member lacks in several pieces."""
REQUEST_LOSSES: Final = frozenset({"links", "crash", "leave", "recovery", "amnesia", "emptied", "rollback"})
"""Faults that may lose a request on its way. Clients of bare processes send each request once, and so do servers."""
SERVER_SENDERS_SHARE: Final = 0.6
"""How many runs have servers that multicast, of those that may."""
CROSSINGS_SHARE: Final = 0.35
"""How many runs of protocols with an order of groups have many groups, and messages that cross there."""
TREE_SHARE: Final = 0.6
"""How many runs draw a tree of groups, of those whose protocol has one."""


@dataclass(frozen=True)
class Swarm:
    """A plan that leaves something open, and how seeds draw the rest."""

    values: Mapping[str, Any]
    """The plan as plain data; what it names is the same for every seed."""
    spec: Spec
    gateway_values: SearchValues = field(default_factory=dict)
    membership_values: SearchValues = field(default_factory=dict)
    order_values: SearchValues = field(default_factory=dict)

    def draw(self, seed: int) -> dict[str, Any]:
        """The whole plan of one seed, as plain data."""
        random = make_stream(seed, "swarm")
        plan = deepcopy(dict(self.values))
        plan["seed"] = seed
        for table in ("topology", "workload", "network", "faults", "options"):
            plan.setdefault(table, {})
        self._draw_workload(plan, random)
        self._draw_topology(plan, random)
        self._draw_crossings(plan, make_stream(seed, "crossings"))
        claims = self._claims(plan)
        self._draw_order(plan, claims, make_stream(seed, "order"))
        self._draw_nodes(plan, claims, random)
        self._draw_faults(plan, claims, random)
        if not self.spec.claims.removes_groups:  # a server does not learn which groups are lost
            _draw_senders(plan, make_stream(seed, "senders"))
        _draw_options(plan["options"], self.spec.config.search_values, self.spec.options, random)
        for name, (low, high) in TIMEOUTS.items():
            if name in self.spec.config.__struct_fields__:
                plan["options"].setdefault(name, [low * MILLISECOND, high * MILLISECOND])
        if "batch" in self.spec.config.__struct_fields__:
            plan["options"].setdefault("batch", make_stream(seed, "batch").choice(BATCHES))
        self._draw_group_options(plan, random)
        self._draw_tree(plan, make_stream(seed, "tree"))
        self._draw_records(plan, random)
        self._draw_destinations(plan, random)
        # Reconfiguration runs the replicated protocol, also in groups of one process.
        changes = plan["faults"].get("events")
        plan["network"].setdefault("links", self.spec.claims.links if changes else claims.links)
        return plan

    def _draw_workload(self, plan: dict[str, Any], random: Random) -> None:
        workload = plan["workload"]
        _settle(workload, "messages", _weighted(random, MESSAGES))
        _settle(workload, "outstanding", random.choice((1, 3, 3, 8)))
        if "name" not in workload:
            _settle(workload, "payload", random.choice((0, 8, 64, 300)))

    def _draw_topology(self, plan: dict[str, Any], random: Random) -> None:
        """Sizes; at most as many servers as so many messages can pay for."""
        topology = plan["topology"]
        groups, replicas = _weighted(random, GROUPS), _weighted(random, REPLICAS)
        clients = random.choice((1, 2, 3, 4))
        if topology.get("environment"):
            return
        if self.spec.claims.single_replica:
            replicas = 1
        elif self.spec.unreplicated is not None and not self.spec.unreplicated.faults.issuperset(_given_faults(plan)):
            replicas = max(replicas, 3)  # a group of one claims less
        messages = plan["workload"]["messages"]
        most = next((most for least, most in MAX_SERVERS.items() if messages >= least), 21)
        replicas = _settle(topology, "replicas", replicas)
        if isinstance(replicas, int) and replicas > 0:
            groups = max(1, min(groups, most // replicas))
        _settle(topology, "groups", groups)
        _settle(topology, "clients", clients)

    def _draw_crossings(self, plan: dict[str, Any], random: Random) -> None:
        """Many groups in an order, and many messages to a few of them at the same time: only then does one group learn
        from others, late, what precedes a message that it has spoken of already."""
        given, workload, topology = self.values, plan["workload"], plan["topology"]
        has_order = "order" in self.spec.config.__struct_fields__
        is_open = not given.get("topology") and not given.get("workload") and not _given_faults(plan)
        if not (has_order and is_open) or random.random() >= CROSSINGS_SHARE:
            return
        topology["replicas"] = random.choice((1, 1, 3))
        topology["groups"] = 4 if topology["replicas"] > 1 else random.choice((4, 5, 6, 7))
        topology["clients"] = 4
        workload["messages"], workload["outstanding"] = 30, 8
        workload["destinations"] = [2, random.choice((2, 2, 3))]

    def _claims(self, plan: dict[str, Any]) -> Claims:
        """The claims for groups of the drawn size."""
        alone = plan["topology"].get("replicas") == 1 and not plan["topology"].get("environment")
        return self.spec.unreplicated if alone and self.spec.unreplicated is not None else self.spec.claims

    def _draw_order(self, plan: dict[str, Any], claims: Claims, random: Random) -> None:
        """Real-time order, with the nodes that it needs, or none. A stream of its own leaves all other draws alone."""
        is_drawn = random.random() < REAL_TIME_SHARE and "crash" in claims.faults and plan.get("nodes") is not False
        if _settle(plan, "order", "real-time" if is_drawn and not claims.real_time else "acyclic") == "real-time":
            _settle(plan, "nodes", True)
            _draw_options(plan.setdefault("order_options", {}), self.order_values, {}, random)
            self._draw_chains(plan, random)

    def _draw_chains(self, plan: dict[str, Any], random: Random) -> None:
        """Several groups, and messages to few of them: what orders of time contradict are chains over groups."""
        groups, share = _weighted(random, AUDITED_GROUPS), random.random()
        sizes, given = plan["topology"], self.values.get("topology", {})
        replicas = sizes.get("replicas", 1)
        if share < 0.3 or given.get("environment") or not isinstance(replicas, int) or replicas < 1:
            return
        if "groups" not in given:
            messages = plan["workload"]["messages"]
            most = next((most for least, most in MAX_SERVERS.items() if messages >= least), 21)
            sizes["groups"] = groups = max(1, min(groups, most // replicas))
        if share < 0.8 and "name" not in plan["workload"] and sizes["groups"] > 1:
            _settle(plan["workload"], "destinations", [1, 2])

    def _draw_nodes(self, plan: dict[str, Any], claims: Claims, random: Random) -> None:
        """Whole nodes or bare processes, gateways, and changes of members."""
        bare, gateways, changes = random.random() < 0.1, random.random() < 0.4, random.random() < 0.12
        joins_first = random.random() < 0.7
        bare = bare and not _given_faults(plan) & REQUEST_LOSSES
        must_be_nodes = bool(plan["faults"].get("events"))  # members change in nodes
        can_be_nodes = "crash" in claims.faults or must_be_nodes
        nodes = _settle(plan, "nodes", must_be_nodes or (can_be_nodes and not bare))
        if nodes is None:
            nodes = can_be_nodes
        if not nodes:
            return
        if self.spec.open_bundle is not None and _settle(plan, "gateways", gateways):
            _draw_options(plan.setdefault("gateway", {}), self.gateway_values, {}, random)
        faults = plan["faults"]
        if changes and self.spec.claims.members and "events" not in faults and "environment" not in plan["topology"]:
            faults["events"] = _draw_changes(plan["topology"], joins_first, random)
            _draw_options(plan.setdefault("membership", {}), self.membership_values, {}, random)

    def _draw_faults(self, plan: dict[str, Any], claims: Claims, random: Random) -> None:
        """A subset of the claimed faults: some runs have all of them, most a few, some none."""
        share = random.choice((0.0, 0.3, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0))
        claimed = claims.for_nodes().faults if plan.get("nodes") else claims.faults
        kinds = [kind for kind in FAULTS if kind in claimed]
        if plan.get("nodes") is False and "crash" in claims.faults:
            kinds = [kind for kind in kinds if kind not in REQUEST_LOSSES]
        chosen = [kind for kind in kinds if random.random() < share]
        profile = plan["faults"].get("profile", "all")
        if profile == "all":
            plan["faults"]["profile"] = "+".join(chosen) or "none"

    def _draw_group_options(self, plan: dict[str, Any], random: Random) -> None:
        """Options that name groups: an order of all groups, or one of them."""
        groups = plan["topology"].get("groups")
        if not isinstance(groups, int) or plan["topology"].get("environment"):
            return
        if not 1 <= groups <= MAX_GROUPS:
            return  # the topology refuses it, in a sentence
        order = list(range(groups))
        random.shuffle(order)
        for name, value in (("order", order), ("ordering", order[0])):
            if name in self.spec.config.__struct_fields__ and random.random() < 0.3:
                _settle(plan["options"], name, value)

    def _draw_tree(self, plan: dict[str, Any], random: Random) -> None:
        """A tree of all groups, for protocols with an option `edges`: any tree, or a path, which is the deepest."""
        groups = plan["topology"].get("groups")
        has_groups = isinstance(groups, int) and groups > 1 and not plan["topology"].get("environment")
        if not has_groups or "edges" not in self.spec.config.__struct_fields__ or random.random() >= TREE_SHARE:
            return
        order = random.sample(range(groups), groups)
        is_path = random.random() < 0.3
        edges = [[order[at - 1 if is_path else random.randrange(at)], order[at]] for at in range(1, groups)]
        _settle(plan["options"], "edges", edges)

    def _draw_records(self, plan: dict[str, Any], random: Random) -> None:
        """Whether processes have records at all. Where members change they do: a disk that holds the configuration and
        not the votes made in it exists nowhere."""
        without = random.random() < 0.15
        if without and "records" in self.spec.config.__struct_fields__ and not plan["faults"].get("events"):
            _settle(plan["options"], "records", False)

    def _draw_destinations(self, plan: dict[str, Any], random: Random) -> None:
        """How many groups a message addresses; other workloads than the default one draw that themselves."""
        groups = plan["topology"].get("groups", 3)
        if "name" in plan["workload"] or not isinstance(groups, int) or groups < 1:
            return
        most = min(groups, random.choice((1, 2, 2, 3, 3, 3, 7)))
        _settle(plan["workload"], "destinations", [random.choice((1, 1, 1, most)), most])


def _draw_senders(plan: dict[str, Any], random: Random) -> None:
    """Whether servers multicast, too, as nodes do for applications beside them; only where no request is lost. One that
    is early for a configuration is lost if too many others wait for it."""
    is_safe = plan.get("nodes") is True and not REQUEST_LOSSES.intersection(plan["faults"]["profile"].split("+"))
    is_safe = is_safe and "max_early_bodies" not in plan.get("membership", {})
    if is_safe and random.random() < SERVER_SENDERS_SHARE:
        _settle(plan, "senders", "all")


def _given_faults(plan: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of faults that the plan names: every seed draws a shape that claims to survive them."""
    return frozenset(FAULTS).intersection(str(plan["faults"].get("profile", "")).split("+"))


def _draw_changes(topology: dict[str, Any], joins_first: bool, random: Random) -> list[dict[str, Any]]:
    """A member joins a group, and perhaps another one is removed."""
    groups, replicas = topology.get("groups", 3), topology.get("replicas", 1)
    clients = topology.get("clients", 4)
    group = random.randrange(groups)
    joining = groups * replicas + clients + 1  # behind the clients and the operator
    join = {"at_ns": 0, "do": "change", "group": group, "add": joining}
    leave = {"at_ns": 0, "do": "change", "group": group, "remove": group * replicas + random.randrange(replicas)}
    if replicas > 1 and not joins_first:
        return [leave]
    return [join, leave] if random.random() < 0.5 else [join]


def _draw_options(options: dict[str, Any], values: SearchValues, fixed: Mapping[str, Any], random: Random) -> None:
    """Options that nobody fixed: the default now and then, mostly a value for searches."""
    for name, choices in values.items():
        drawn, default = random.choice(choices), random.random() < 0.25
        if name not in fixed and not default:
            options.setdefault(name, drawn)


def _settle(table: dict[str, Any], name: str, drawn: Any) -> Any:
    """Sets a field that the plan leaves open; returns its value."""
    return table.setdefault(name, drawn)


def _weighted(random: Random, weights: Mapping[int, int]) -> int:
    values: Sequence[int] = tuple(weights)
    return random.choices(values, tuple(weights.values()))[0]
