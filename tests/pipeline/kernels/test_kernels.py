"""The kernels against definitions, without Spark."""

from itertools import permutations
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import message_id
from amcast.pipeline.check.examination import PositionGapError
from amcast.pipeline.kernels.fingerprints import Fingerprint, choose_bucket_count, find_buckets, select_in_buckets
from amcast.pipeline.kernels.merge import BUFFER_ENTRIES, ChainGap, ChainRows, find_head_cycle, merge
from amcast.pipeline.kernels.packets import PacketAudit, ProcessTable, fast_agree
from amcast.pipeline.kernels.pairs import SharedEntriesCounter, compare_pairs
from amcast.pipeline.kernels.replicas import DeliveryRows, PositionSlice
from amcast.pipeline.kernels.unique_ids import AscendingIds
from amcast.pipeline.rows.tables import MessageLookup, refuse_contradictions
from tests.mutants.planted import Trace
from tests.pipeline.small_runs import examine, gapped_run, plain, planted_runs, random_run, without_run_name


def longs(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# The merge


def rows(chain: list[int], addressed: dict[int, tuple[int, ...]]) -> ChainRows:
    flat = [group for message in chain for group in addressed[message]]
    ends = np.cumsum([0, *(len(addressed[message]) for message in chain)])
    return ChainRows(longs(*chain), ends.astype(np.int32), np.array(flat, np.int32))


def split_randomly(random: Random, whole: ChainRows) -> list[ChainRows]:
    """The same rows as a reader may return them: in batches of any size, some empty."""
    cuts = sorted(random.choices(range(whole.messages.size + 1), k=random.randint(0, 4)))
    bounds = zip([0, *cuts], [*cuts, whole.messages.size], strict=True)
    return [ChainRows(whole.messages[a:b], whole.offsets[a : b + 1], whole.values) for a, b in bounds]


def is_acyclic(
    chains: list[list[int]], addressed: dict[int, tuple[int, ...]], certain: dict[int, int] | None = None
) -> bool:
    """By definition: some order of all messages that every chain follows, undelivered messages coming last.

    After a gap (`certain` entries come before it) a missing message may have been delivered in the gap.
    """
    messages = sorted({message for chain in chains for message in chain})
    before = {
        (u, v)
        for at, chain in enumerate(chains)
        for i, u in enumerate(chain)
        for v in messages
        if at in addressed[v] and v != u and v not in chain[:i]
        if v in chain or i < (certain or {}).get(at, len(chain))
    }
    return any(all(order.index(u) < order.index(v) for u, v in before) for order in permutations(messages))


@pytest.mark.parametrize("seed", range(150))
def test_merge_completes_exactly_without_a_cycle(seed: int) -> None:
    random = Random(seed)
    groups, count = random.randint(1, 5), random.randint(1, 6)
    addressed = {m: tuple(sorted(random.sample(range(groups), random.randint(1, groups)))) for m in range(count)}
    chains = [[m for m in range(count) if g in addressed[m]] for g in range(groups)]
    for chain in chains:
        if random.random() < 0.4 and len(chain) > 1:
            i, j = random.sample(range(len(chain)), 2)
            chain[i], chain[j] = chain[j], chain[i]
        if random.random() < 0.2:
            del chain[random.randrange(len(chain) + 1) :]
        if random.random() < 0.1 and chain:
            del chain[random.randrange(len(chain))]
    found = merge([iter(split_randomly(random, rows(chain, addressed))) for chain in chains])
    assert (not found.heads) == is_acyclic(chains, addressed)
    if not found.heads:
        assert found.removed == len({message for chain in chains for message in chain})
        return
    cycle = find_head_cycle(found.heads)
    assert len(cycle) >= 2
    for head, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        # `head` waits for `after`: where `after` is the head, `head` is addressed and not delivered before it.
        assert chains[head.chain][head.index] == head.message
        assert after.chain in addressed[head.message]
        assert head.message not in chains[after.chain][: after.index + 1]


@pytest.mark.parametrize("seed", range(150))
def test_merge_respects_what_a_gap_may_hide(seed: int) -> None:
    random = Random(f"holes {seed}")
    groups, count = random.randint(2, 4), random.randint(3, 6)
    addressed = {m: tuple(sorted(random.sample(range(groups), random.randint(1, groups)))) for m in range(count)}
    chains = [[m for m in range(count) if g in addressed[m]] for g in range(groups)]
    certain = {}
    for at, chain in enumerate(chains):
        if random.random() < 0.4 and len(chain) > 1:
            i, j = random.sample(range(len(chain)), 2)
            chain[i], chain[j] = chain[j], chain[i]
        if random.random() < 0.7:
            certain[at] = random.randrange(len(chain) + 1)
            del chain[certain[at] : certain[at] + random.randint(0, 2)]
    holes = {at: ChainGap(index, np.sort(longs(*chains[at][index:]))) for at, index in certain.items()}
    found = merge([iter(split_randomly(random, rows(chain, addressed))) for chain in chains], holes)
    assert (not found.heads) == is_acyclic(chains, addressed, certain)


def test_merge_has_no_limit_of_groups() -> None:
    groups = 300
    addressed = {m: (m % groups, (m + 1) % groups) for m in range(5 * groups)}
    chains = [[m for m in sorted(addressed) if g in addressed[m]] for g in range(groups)]
    assert merge([iter([rows(chain, addressed)]) for chain in chains]).removed == len(addressed)
    chains[299].reverse()
    assert merge([iter([rows(chain, addressed)]) for chain in chains]).heads


def test_merge_memory_is_bounded_by_its_buffers() -> None:
    """Two chains far longer than the buffers, made up as they are read: what is held is bounded by the buffers."""
    made = [0, 0]
    batch = 1 << 14

    def chain(at: int) -> object:
        for first in range(0, 3 * BUFFER_ENTRIES, batch):
            made[at] += batch
            ahead = abs(made[0] - made[1])
            assert ahead <= BUFFER_ENTRIES + batch, "one chain is read far ahead of the other"
            ids = np.arange(first, first + batch, dtype=np.int64)
            yield ChainRows(
                ids, np.arange(0, 2 * batch + 1, 2, dtype=np.int32), np.tile(np.array([0, 1], np.int32), batch)
            )

    assert merge([chain(0), chain(1)]).removed == 3 * BUFFER_ENTRIES


# Pairs of chains


def find_differing_pairs(chains: list[list[int]], addressed: dict[int, tuple[int, ...]]) -> set[tuple[int, int]]:
    """The pairs that differ, as the check finds them: once as they are, then up to the end of the shorter."""

    def walk(at: int, limits: dict[int, int] | None = None) -> SharedEntriesCounter:
        commons = SharedEntriesCounter(at, len(chains), limits)
        commons.absorb(rows(chains[at], addressed))
        return commons.result()

    found = {at: walk(at) for at in range(len(chains))}
    differ, again = compare_pairs(found)
    for at, limits in again.items():
        differ |= compare_pairs({at: walk(at, limits), **{other: found[other] for other in limits}})[0]
    return differ


@pytest.mark.parametrize("seed", range(60))
def test_pairs_differ_exactly_when_neither_is_a_prefix(seed: int) -> None:
    random = Random(f"pairs {seed}")
    groups, count = random.randint(2, 6), random.randint(1, 12)
    addressed = {m: tuple(sorted(random.sample(range(groups), random.randint(1, groups)))) for m in range(count)}
    chains = [[m for m in range(count) if g in addressed[m]] for g in range(groups)]
    for chain in chains:
        if random.random() < 0.3 and len(chain) > 1:
            i, j = random.sample(range(len(chain)), 2)
            chain[i], chain[j] = chain[j], chain[i]
        if random.random() < 0.3:
            del chain[random.randrange(len(chain) + 1) :]
    wanted = set()
    for one in range(groups):
        for other in range(one + 1, groups):
            ours = [m for m in chains[one] if other in addressed[m]]
            theirs = [m for m in chains[other] if one in addressed[m]]
            size = min(len(ours), len(theirs))
            if ours[:size] != theirs[:size]:
                wanted.add((one, other))
    assert find_differing_pairs(chains, addressed) == wanted


# Fingerprints


def test_fingerprint_ignores_order() -> None:
    one, other = Fingerprint(64), Fingerprint(64)
    offsets, values = np.array([0, 2, 3], np.int32), np.array([4, 7, 7], np.int32)
    one.add_addressed(longs(11, 12), offsets, values, longs(5, 6))
    other.add_delivered(longs(12, 11), np.array([0, 1, 3], np.int32), np.array([7, 7, 4], np.int32), longs(6, 5), 7)
    assert one.find_differences(other).tolist() == find_buckets([11], 64).tolist()
    part = Fingerprint(64)
    part.add_delivered(longs(11), np.array([0, 2], np.int32), np.array([4, 7], np.int32), longs(5), 4)
    other += part
    assert not one.find_differences(other).any()


@pytest.mark.parametrize("change", ["message", "destinations", "group", "time", "twice"])
def test_fingerprint_detects_every_change(change: str) -> None:
    one, other = Fingerprint(16), Fingerprint(16)
    offsets, values = np.array([0, 2], np.int32), np.array([0, 3], np.int32)
    one.add_delivered(longs(9), offsets, values, longs(100), 3)
    message = longs(8 if change == "message" else 9)
    wrong = np.array([0, 4], np.int32) if change == "destinations" else values
    for _ in range(2 if change == "twice" else 1):
        other.add_delivered(
            message, offsets, wrong, longs(99 if change == "time" else 100), 2 if change == "group" else 3
        )
    assert one.find_differences(other).any()


def test_buckets_hold_few_messages() -> None:
    messages = np.arange(100_000, dtype=np.int64)
    buckets = choose_bucket_count(messages.size)
    inside = select_in_buckets(messages, find_buckets([77], buckets))
    assert inside[77]
    assert inside.sum() < 400


# Ids


def test_ascending_ids_are_proved_unique() -> None:
    ids = [message_id(sender, number) for number in range(50) for sender in (3, 5000, 9)]
    whole, first, second = AscendingIds(), AscendingIds(), AscendingIds()
    whole.absorb(longs(*ids))
    assert whole.is_ascending
    first.absorb(longs(*ids[:70]))
    second.absorb(longs(*ids[70:]))
    first.extend_with(second)
    assert first.is_ascending
    again = AscendingIds()
    again.absorb(longs(ids[4]))
    whole.extend_with(again)
    assert not whole.is_ascending
    for strange in ([5, 5], [7, 6], [-1], [2**62]):
        growing = AscendingIds()
        growing.absorb(longs(*strange))
        assert not growing.is_ascending


# Replicas


def replica(*entries: tuple[int, int], at: int = 10, sent: int = 5, groups: int = 3) -> list[DeliveryRows]:
    positions, messages = longs(*(e[0] for e in entries)), longs(*(e[1] for e in entries))
    return [DeliveryRows(positions, messages, *(np.full_like(positions, value) for value in (at, sent, groups)))]


def test_slice_compares_replicas_by_position() -> None:
    piece = PositionSlice(10, 20)
    full = [(position, 100 + position) for position in range(5, 25)]
    assert piece.absorb(1, replica(*full), 25).is_clean
    shorter = piece.absorb(2, replica(*full[:10]), 15)
    assert shorter.is_clean
    assert shorter.holes == ()
    wrong = piece.absorb(3, replica(*full[:8], (13, 7), *full[9:]), 25)
    assert (wrong.conflict, wrong.holes) == (13, ())
    holes = piece.absorb(4, replica(*full[:7], *full[10:13]), 19)
    assert holes.is_clean
    assert holes.holes == ((12, 15), (18, 19))
    assert piece.absorb(5, replica(full[5], full[5]), 11).disorder == 10
    assert piece.absorb(6, replica(*full, sent=11), 25).early == 10
    assert piece.absorb(7, replica(*full, sent=4), 25).unlike == 10
    assert piece.absorb(8, replica(*full, groups=4), 25).unlike == 10


# Packets


@pytest.mark.parametrize("first", [0, 10**9], ids=["table", "search"])
def test_both_ends_of_a_packet_took_part(first: int) -> None:
    """Process ids are looked up in a table, or searched where they are too large for one."""
    ids = [first + place for place in range(4)]
    audit = PacketAudit(ProcessTable({ids[0]: 0, ids[1]: 1, ids[2]: None, ids[3]: None}))
    messages = (longs(ids[2]), np.array([0, 1], np.int32), np.array([0], np.int32))
    known, unknown = (longs(0), np.array([0], np.int32)), (longs(0), np.array([-1], np.int32))
    wrong = audit.judge((longs(ids[2]), longs(ids[0])), known, messages)
    assert not wrong.any(), "from the sender to its destination"
    assert audit.took_part.tolist() == [True, False, True, False, False]
    assert audit.judge((longs(ids[0]), longs(first + 99)), known, messages).all()
    assert audit.took_part.tolist() == [True, False, True, False, True], "the last place is for unknown processes"
    assert audit.judge((longs(ids[2]), longs(ids[1])), unknown, messages).all(), "nobody multicast the message"
    assert audit.took_part.tolist() == [True, True, True, False, True]
    assert audit.outsider_pairs == 2


def refuses(known: MessageLookup, places: np.ndarray, stated: list[tuple[int | None, list[int] | None]]) -> bool:
    senders = pa.array([sender for sender, _ in stated], pa.int32())
    lists = pa.array([values for _, values in stated], pa.list_(pa.int32()))
    messages = np.where(places < 0, 10**6, known.messages[places])
    try:
        refuse_contradictions(known, "packets", messages, lists, senders=senders)
    except UsageError:
        return True
    return False


def agree(known: MessageLookup, places: np.ndarray, stated: list[tuple[int | None, list[int] | None]]) -> bool:
    senders = (
        np.array([sender or 0 for sender, _ in stated], np.int64),
        np.array([sender is not None for sender, _ in stated]),
    )
    offsets = np.cumsum([0, *(len(values or ()) for _, values in stated)]).astype(np.int32)
    flat = np.array([value for _, values in stated for value in values or ()], np.int32)
    lists = (offsets, flat, np.array([values is not None for _, values in stated]))
    pairs = (np.arange(len(stated)), places.astype(np.int32))
    return fast_agree(pairs, (known.senders, known.offsets, known.values), senders, lists)


@pytest.mark.parametrize("block", range(4))
def test_packets_that_agree_value_by_value_contradict_nothing(block: int) -> None:
    """The fast path is right whenever it says yes, and says yes to what a writer copies from the multicasts."""
    outcomes = set()
    for seed in range(200 * block, 200 * block + 200):
        random = Random(seed)
        lists = [sorted(random.sample(range(5), random.randint(1, 3))) for _ in range(4)]
        offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        flat = np.array([value for values in lists for value in values], np.int32)
        known = MessageLookup(longs(7, 8, 9, 10), longs(1, 2, 3, 4), offsets, flat, longs(0, 0, 0, 0))
        places = np.array([random.randint(-1, 3) for _ in range(5)])
        copied: list[tuple[int | None, list[int] | None]] = [(at + 1, list(lists[at])) for at in places]
        assert agree(known, places, copied)
        stated = list(copied)
        for _ in range(random.randint(0, 3)):
            at = random.randrange(5)
            sender, values = stated[at]
            change = random.choice(("other sender", "no sender", "no list", "reversed", "longer", "other value"))
            if change == "other sender" or change == "no sender":
                sender = 99 if change == "other sender" else None
            elif values is not None:
                other = {"no list": None, "reversed": values[::-1], "longer": [*values, 4], "other value": [4]}
                values = other[change]
            stated[at] = (sender, values)
        found = (agree(known, places, stated), refuses(known, places, stated))
        assert found != (True, True)
        outcomes.add(found)
    assert outcomes == {(True, False), (False, True), (False, False)}


# The whole examination, against the plain checker


@pytest.mark.parametrize("name", sorted(planted_runs()))
def test_planted_runs_get_the_plain_checkers_report(name: str) -> None:
    trace = planted_runs()[name]
    try:
        assert without_run_name(examine(trace)) == without_run_name(plain(trace))
    except PositionGapError:
        # The kernels leave gaps to the plain checker; alone they must reach the same verdicts.
        assert verdicts(examine(trace, gapped_rows=0)) == verdicts(plain(trace))


def verdicts(report: object) -> dict[str, str]:
    assert isinstance(report, dict)
    return {name: finding["verdict"] for name, finding in report["properties"].items()}


@pytest.mark.parametrize("block", range(8))
def test_random_runs_get_the_plain_checkers_report(block: int) -> None:
    judged = 0
    for seed in range(50 * block, 50 * block + 50):
        trace = random_run(seed)
        try:
            assert without_run_name(examine(trace)) == without_run_name(plain(trace)), f"random_run({seed})"
            judged += 1
        except PositionGapError:
            continue
    assert judged >= 30


@pytest.mark.parametrize("block", range(5))
def test_runs_with_gaps_get_the_plain_checkers_verdicts(block: int) -> None:
    """The road of large runs, on which no run is too ragged: the same verdict on every property."""
    judged = 0
    for seed in range(50 * block, 50 * block + 50):
        trace = gapped_run(seed)
        if any(trace.sequences.values()):
            assert verdicts(examine(trace, gapped_rows=0)) == verdicts(plain(trace)), f"gapped_run({seed})"
            judged += 1
    assert judged >= 40


@pytest.mark.parametrize("block", range(2))
def test_too_many_holes_only_make_verdicts_unknown(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amcast.pipeline.kernels.replicas.MAX_HOLES", 1)
    for seed in range(50 * block, 50 * block + 50):
        trace = gapped_run(seed)
        if any(trace.sequences.values()):
            found, wanted = verdicts(examine(trace, gapped_rows=0)), verdicts(plain(trace))
            for name, verdict in found.items():
                assert verdict in (wanted[name], "unknown"), f"gapped_run({seed}), {name}"


def many_groups(kind: str) -> Trace:
    """A ring of 250 groups, one message for each two neighbours; 31 125 pairs of groups."""
    count = 250
    trace = Trace({g: [g] for g in range(count)}, [900])
    for message in range(count):
        trace.multicast(message, *sorted({message, (message + 1) % count}), sender=900)
    for group in range(count):
        trace.order(group, *sorted({group, (group - 1) % count}))
    if kind == "cycle":
        trace.order(0, count - 1, 0)
    for message in (1000, 1001):
        trace.multicast(message, 100, 200, sender=900)
    trace.order(100, *trace.delivered(100), 1000, 1001)
    trace.order(200, *trace.delivered(200), *((1001, 1000) if kind == "pair" else (1000, 1001)))
    return trace


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("sound", ("holds", "holds")), ("cycle", ("holds", "violated")), ("pair", ("violated", "violated"))],
)
def test_tens_of_thousands_of_pairs_of_groups(kind: str, verdict: tuple[str, str]) -> None:
    trace = many_groups(kind)
    report = examine(trace)
    assert without_run_name(report) == without_run_name(plain(trace))
    assert (verdicts(report)["P4"], verdicts(report)["P5"]) == verdict
