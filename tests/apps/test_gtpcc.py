"""gTPC-C under faults in the simulator, and its consistency conditions, each broken once."""

from collections.abc import Callable, Generator
from random import Random

import pytest

from amcast.apps import gtpcc
from amcast.apps.gtpcc import (
    Customer,
    Line,
    Offer,
    Order,
    OrderLine,
    Warehouse,
    Wholesaler,
    find_inconsistency,
    judge_warehouse,
    work,
)
from amcast.lab.service_search import ServiceSearch
from amcast.services.declaration import At, Key, command
from amcast.simulation.services.drawn_calls import make_client_load
from amcast.simulation.services.run import SimulatedClient


class Hurried(Wholesaler):
    """A mutant: a warehouse whose own items exist does not ask the others."""

    @command
    def new_order(
        self, at: At, home: Key, district: int, customer: int, lines: list[Line], suppliers: list[Key]
    ) -> Generator[Offer, dict[str, Offer], int]:
        for (item, _), supplier in zip(lines, suppliers, strict=True):
            if at.owns(supplier) and item > gtpcc.ITEMS:
                return 0
        for (item, quantity), supplier in zip(lines, suppliers, strict=True):
            if at.owns(supplier):
                self._supply(self._open(supplier), item, quantity, supplier != home)
        if at.owns(home):
            self._open(home).ordered += sum(quantity for _, quantity in lines)
        return sum(gtpcc.price_of(item) * quantity for item, quantity in lines)
        yield True, {}


class Forgetful(Wholesaler):
    """A mutant: customers of other warehouses pay, and nobody tells their warehouse."""

    @command
    def payment(
        self, at: At, home: Key, district: int, customer_home: Key, customer_district: int, customer: int, amount: int
    ) -> int:
        if home != customer_home and not at.owns(home):
            return 0
        return super().payment(at, home, district, customer_home, customer_district, customer, amount)


def search(seeds: int) -> list[str]:
    found = ServiceSearch(make_client_load(work), [find_inconsistency]).run(range(seeds))
    return [outcome.story for outcome in found if outcome.status != "holds"]


def test_warehouses_are_consistent_under_faults() -> None:
    assert search(6) == []


@pytest.mark.parametrize(("mutant", "sentence"), [(Forgetful, "paid"), (Hurried, "")])
def test_mutant_is_found(mutant: type[Wholesaler], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gtpcc, "Wholesaler", mutant)
    monkeypatch.setattr(gtpcc, "UNKNOWN_ITEM", 0.3)
    monkeypatch.setattr(gtpcc, "REMOTE_ITEM", 0.3)
    [story] = search(200)
    assert sentence in story


def test_transactions_do_what_tpc_c_says() -> None:
    async def buy(client: SimulatedClient) -> None:
        shop = client.service(Wholesaler)
        cost = gtpcc.price_of(7) * 2 + gtpcc.price_of(9)
        homes = ["warehouse-0", "warehouse-1"]
        outcome = await shop.new_order("warehouse-0", 1, 3, [(7, 2), (9, 1)], homes)
        assert set(outcome.by_group.values()) == {cost}
        assert (await shop.new_order("warehouse-0", 1, 3, [(7, 2), (101, 1)], homes)).value == 0
        balance, number, lines = (await shop.order_status("warehouse-0", 1, 3)).value
        assert (balance, number, [line.supplier for line in lines]) == (0, 1, homes)
        assert lines[1].text == "warehouse-1 district 1 item 9"
        assert (await shop.stock_level("warehouse-0", 1, 49)).value == 1
        assert (await shop.delivery("warehouse-0", 4)).value == 1
        assert (await shop.delivery("warehouse-0", 4)).value == 0
        assert (await shop.payment("warehouse-1", 2, "warehouse-0", 1, 3, 500)).by_group["group-0"] == cost - 500
        assert (await shop.order_status("warehouse-0", 1, 3)).value[0] == cost - 500

    found = ServiceSearch(make_client_load(buy), [find_inconsistency], "none", groups=2, callers=1).run(range(2))
    assert [(outcome.status, outcome.story) for outcome in found] == [("holds", ""), ("holds", "")]


def _break_order(warehouse: Warehouse) -> None:
    warehouse.districts[0].orders[1].lines.pop()


def _break_carrier(warehouse: Warehouse) -> None:
    warehouse.districts[0].orders[1].carrier = 5


def _break_line(warehouse: Warehouse) -> None:
    warehouse.districts[0].orders[2].lines[0].is_delivered = True


def _break_numbers(warehouse: Warehouse) -> None:
    warehouse.districts[0].next_order += 1


def _break_new(warehouse: Warehouse) -> None:
    warehouse.districts[0].new_orders.remove(1)
    warehouse.districts[0].new_orders.insert(0, 0)


def _break_paid(warehouse: Warehouse) -> None:
    warehouse.paid += 1


def _break_history(warehouse: Warehouse) -> None:
    warehouse.districts[0].history["warehouse-1/1/1"] = 3


def _break_customer(warehouse: Warehouse) -> None:
    warehouse.districts[0].customers[1] = Customer(balance=5)


@pytest.mark.parametrize(
    ("damage", "condition"),
    [
        (_break_paid, "conditions 1 and 8"),
        (_break_numbers, "condition 2"),
        (_break_new, "condition 3"),
        (_break_order, "conditions 4 and 6"),
        (_break_carrier, "conditions 5 and 11"),
        (_break_line, "condition 7"),
        (_break_history, "condition 9"),
        (_break_customer, "condition 12"),
    ],
)
def test_each_condition_is_judged(damage: Callable[[Warehouse], None], condition: str) -> None:
    warehouse = Warehouse()
    district = warehouse.districts[0]
    for number in (1, 2, 3):
        district.orders[number] = Order(1, 2, [OrderLine(item, "warehouse-0", 1, 10, "") for item in (1, 2)])
        district.new_orders.append(number)
    district.next_order = 4
    assert judge_warehouse(warehouse) is None
    damage(warehouse)
    wrong = judge_warehouse(warehouse)
    assert wrong is not None
    assert condition in wrong


def test_condition_10_is_judged_between_warehouses() -> None:
    here, there = Wholesaler("here"), Wholesaler("there")
    one, other = Warehouse(paid=7), Warehouse()
    one.districts[0].paid = 7
    one.districts[0].history["warehouse-1/1/2"] = 7
    other.districts[0].customers[2] = Customer(balance=-7, paid=7)
    here.warehouses["warehouse-0"], there.warehouses["warehouse-1"] = one, other
    assert find_inconsistency({"here": here, "there": there}) is None
    other.districts[0].customers[3] = other.districts[0].customers.pop(2)
    assert "condition 10" in (find_inconsistency({"here": here, "there": there}) or "")


def test_locality_of_suppliers() -> None:
    random = Random(1)
    drawn = [gtpcc.choose_near(random, "warehouse-3", 4) for _ in range(1000)]
    assert 850 < drawn.count("warehouse-0") < 950
    assert set(drawn) == {"warehouse-0", "warehouse-1", "warehouse-2"}
