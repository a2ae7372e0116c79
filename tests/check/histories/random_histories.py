"""Random histories of calls, and what is true of each by trying every order of its operations."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from random import Random
from typing import Any

from amcast.check.histories.bank import check_bank
from amcast.check.histories.history import HistoryLine, HistoryOperation, pair_lines
from amcast.check.histories.list_append import check_list_append
from amcast.check.histories.register import check_register
from amcast.check.histories.report import HistoryReport
from amcast.kernel.errors import UsageError

Call = tuple[str, Any]
Answer = Callable[[Random, Call], Any]
REFUSED = "refused"


def find_difference(seed: int) -> str:
    """How a judge of histories differs from trying every order, for the histories of one seed; "" if none does."""
    random = Random(f"histories {seed}")
    lists = next(filter(None, (_compare_lists(random) for _ in range(3))), "")
    return lists or _compare_registers(random) or _compare_banks(random)


def _make_history(
    random: Random, processes: int, calls: int, draw: Callable[[Random], Call], answer: Answer
) -> list[HistoryOperation]:
    """Operations of a few processes. A call happens at its begin, at its end, or somewhere between; some fail, and some
    have no known end."""
    lines: list[HistoryLine] = []
    open_calls: dict[int, tuple[Call, list[Any]]] = {}
    """By process: its call, and the answer if it has happened."""
    ended: set[int] = set()
    left = calls
    while left or open_calls:
        process = random.randrange(processes)
        if process in open_calls:
            (f, given), answers = open_calls.pop(process)
            kind = random.choice(("ok",) * 8 + ("fail", "info"))
            if kind == "fail" and f != "read":
                kind = "ok"  # it did happen
            if kind == "ok" and not answers:
                answers.append(answer(random, (f, given)))
            lines.append(HistoryLine(kind, process, f, answers[0] if kind == "ok" else given))  # type: ignore[arg-type]
            if kind == "info":
                ended.add(process)
        elif left and process not in ended:
            left -= 1
            f, given = draw(random)
            lines.append(HistoryLine("invoke", process, f, given))
            open_calls[process] = ((f, given), [answer(random, (f, given))] if random.random() < 0.7 else [])
        elif len(ended) == processes:
            break
    return pair_lines(lines)


def _list_orders(history: Sequence[HistoryOperation]) -> Iterator[tuple[HistoryOperation, ...]]:
    """Every order that time allows, with any of the operations of unknown end."""
    certain = [one for one in history if one.is_certain]
    unsure = [one for one in history if not one.is_certain]
    for size in range(len(unsure) + 1):
        for some in combinations(unsure, size):
            for order in permutations([*certain, *some]):
                if not any(
                    later.end is not None and later.end < one.begin
                    for place, one in enumerate(order)
                    for later in order[place:]
                ):
                    yield order


# Registers


def _compare_registers(random: Random) -> str:
    values: tuple[Any, ...] = random.choice(((1, 2), ([1], [2]), ([1, 2, 3], 4), (["x", 1], ["x", 2], ["y", 1])))
    has_keys = values[0] == ["x", 1]
    state: dict[Any, Any] = {}

    def draw(random: Random) -> Call:
        if random.random() < 0.5:
            return "write", random.choice(values)
        return "read", [random.choice("xy"), None] if has_keys else None

    def answer(random: Random, call: Call) -> Any:
        f, given = call
        key = given[0] if has_keys else ""
        if f == "write":
            state[key] = given[1] if has_keys else given
            return given
        seen = state.get(key) if random.random() < 0.9 else None
        return [key, seen] if has_keys else seen

    history = _make_history(random, random.choice((2, 3)), random.choice((3, 5, 6)), draw, answer)
    keys = {one.value[0] if has_keys else "" for one in history if one.f == "write" or one.is_certain}
    wanted, story = "holds" if keys else "unknown", ""
    for key in sorted(keys):
        own = [one for one in history if (one.f == "write" or one.is_certain) and (not has_keys or one.value[0] == key)]
        bare = [(one, one.value[1] if has_keys else one.value) for one in own]
        reached = list(_reach_registers(bare))
        most = max(sum(bare[place][0].is_certain for place in done) for done in reached)
        if most < sum(one.is_certain for one in own):
            wanted = "violated"
            furthest = [done for done in reached if sum(bare[place][0].is_certain for place in done) == most]
            story += " ".join(str(_find_unexplained(own, done)) for done in furthest)
    report = check_register(history)
    if report.verdict != wanted:
        return f"register: {wanted} by force; the checker says {report.verdict} of {history}"
    if wanted == "violated" and not any(str(one) in report.story[0] and str(one) in story for one in history):
        return f"register: one of {story} is not explained; the checker names {report.story[0]}"
    hasty = check_register(history, max_states=0)
    if any(one.is_certain for one in history) and hasty.verdict != "unknown":
        return f"register: the checker may look at no state and says {hasty.verdict}"
    return ""


def _reach_registers(history: Sequence[tuple[HistoryOperation, Any]]) -> Iterator[frozenset[int]]:
    """Every set of operations, by place, that can be the first ones in an order that explains their reads."""
    seen: set[tuple[frozenset[int], str]] = set()
    stack: list[tuple[frozenset[int], Any]] = [(frozenset(), None)]
    while stack:
        done, value = stack.pop()
        if (done, repr(value)) in seen:
            continue
        seen.add((done, repr(value)))
        yield done
        left = [place for place in range(len(history)) if place not in done]
        for place in left:
            one, own = history[place]
            ends = [history[other][0].end for other in left]
            if any(end is not None and end < one.begin for end in ends):
                continue
            if one.f == "write" or own == value:
                stack.append((done | {place}, own))


def _find_unexplained(history: Sequence[HistoryOperation], done: frozenset[int]) -> HistoryOperation:
    return next(one for place, one in enumerate(history) if place not in done and one.is_certain)


# Lists


def make_list_history(random: Random, processes: int, calls: int, keys: str = "xy") -> list[HistoryOperation]:
    """Transactions that append and read, of which some are wrong in one way."""
    state: dict[str, list[int]] = {key: [] for key in keys}
    numbers = iter(range(1, 100 + 3 * calls))
    damage = random.choice(("", "", "stale", "swapped", "lost", "strange"))

    def draw(random: Random) -> Call:
        steps: list[list[Any]] = []
        for _ in range(random.choice((1, 1, 2, 3))):
            key = random.choice(keys)
            if random.random() < 0.5:
                steps.append(["append", key, next(numbers)])
            elif ["append", key] not in [step[:2] for step in steps]:  # what it appends itself is not read
                steps.append(["r", key, None])
        return "txn", steps or [["r", "x", None]]

    def answer(random: Random, call: Call) -> Any:
        answered: list[list[Any]] = []
        for kind, key, element in call[1]:
            if kind == "append":
                if damage != "lost" or random.random() < 0.8:
                    state[key].insert(len(state[key]) - (damage == "swapped" and random.random() < 0.2), element)
                answered.append([kind, key, element])
            else:
                seen = list(state[key])
                if damage == "stale" and seen and random.random() < 0.4:
                    seen.pop()
                answered.append([kind, key, seen or (None if random.random() < 0.3 else [])])
                if damage == "strange" and random.random() < 0.2:
                    answered[-1][2] = random.choice((5, [1, 1], [99], "x"))
        return answered

    return _make_history(random, processes, calls, draw, answer)


def _compare_lists(random: Random) -> str:
    history = make_list_history(random, 3, random.choice((3, 4, 5)))
    try:
        report = check_list_append(history).verdict
    except UsageError:
        report = REFUSED
    wanted = _judge_lists(history)
    # What no read shows is in no order: the checker may miss what is wrong with it.
    if report == wanted or (report == "holds" and wanted == "violated" and not _shows_everything(history)):
        return ""
    return f"list-append: {wanted} by force; the checker says {report} of {history}"


def _judge_lists(history: Sequence[HistoryOperation]) -> str:
    reads = [step[2] for one in history if one.is_certain for step in one.value if step[0] == "r"]
    if not all(seen is None or isinstance(seen, list) for seen in reads):
        return REFUSED
    if not reads:
        return "unknown"
    return "holds" if any(map(_explains_lists, _list_orders(history))) else "violated"


def _explains_lists(order: Sequence[HistoryOperation]) -> bool:
    state: dict[str, list[int]] = {"x": [], "y": []}
    for one in order:
        for kind, key, element in one.value:
            if kind == "append":
                state[key].append(element)
            elif one.is_certain and (element or []) != state[key]:
                return False
    return True


def _shows_everything(history: Sequence[HistoryOperation]) -> bool:
    steps = [(one, step) for one in history for step in one.value]
    seen = {element for one, step in steps if one.is_certain and step[0] == "r" for element in step[2] or ()}
    return all(step[2] in seen for _, step in steps if step[0] == "append")


# Banks


def make_bank_history(random: Random, processes: int, calls: int) -> list[HistoryOperation]:
    """Transfers and reads, of which some are wrong."""
    accounts = {"a": random.randint(0, 5), "b": random.randint(0, 5)}

    def draw(random: Random) -> Call:
        return random.choice((("read", None), ("transfer", random.randint(1, 3))))

    def answer(random: Random, call: Call) -> Any:
        if call[0] == "read":
            return {**accounts, **({"a": accounts["a"] + 1} if random.random() < 0.05 else {})}
        accounts["a"] -= call[1]
        accounts["b"] += call[1]
        return call[1]

    history = _make_history(random, processes, calls, draw, answer)
    return [one for one in history if one.value is not None or not one.is_certain]


def _compare_banks(random: Random) -> str:
    history = make_bank_history(random, 2, 4)
    reads = [one.value for one in history if one.f == "read" and one.is_certain]
    totals = {sum(read.values()) for read in reads}
    is_sound = len(totals) == 1 and min(money for read in reads for money in read.values()) >= 0
    wanted = "unknown" if not reads else "holds" if is_sound else "violated"
    report: HistoryReport = check_bank(history)
    return "" if report.verdict == wanted else f"bank: {wanted} by force; the checker says {report.verdict}"
