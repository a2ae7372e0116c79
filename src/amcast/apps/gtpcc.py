"""gTPC-C: wholesalers with warehouses all over the world; orders are filled from the nearest ones.

Source: Batista, Coelho, Alchieri, Dotti, Pedone, "FlexCast: genuine overlay-based atomic multicast" (2023), paper 000,
section 5.3: TPC-C in which warehouses are groups, transactions are messages to their warehouses, and a warehouse that
lacks an item asks the nearest one. The transactions are those of TPC-C (clause 2), on fewer rows; so are the
consistency conditions (clause 3.3.2).

    new_order      the home warehouse and those that supply items; each gives the prices and district texts of its stock
                   at a `yield`, and says whether its items exist: an unknown item rolls the order back everywhere
    payment        the warehouse that is paid, and that of the customer
    delivery       one warehouse: the oldest new order of each district
    order_status, stock_level   one warehouse; read without ordering
    sums           all warehouses, ordered: what must be equal between warehouses

Warehouses are named `warehouse-0`, `warehouse-1`, ...; number n is in group n modulo the number of groups. Money is in
cents. The paper names no sizes of tables; these are TPC-C's, divided so that a state has kilobytes.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import msgspec

from amcast.services.declaration import At, Key, Service, command, query

PREFIX: Final = "warehouse-"
DISTRICTS: Final = 10
CUSTOMERS: Final = 30
"""Of a district; TPC-C has 3,000."""
ITEMS: Final = 100
"""TPC-C has 100,000."""
ORDER_ITEMS: Final = (5, 15)
REMOTE_ITEM: Final = 0.02
"""TPC-C: a line of an order is supplied by another warehouse."""
REMOTE_CUSTOMER: Final = 0.15
UNKNOWN_ITEM: Final = 0.01
MIX: Final = (("new order", 45), ("payment", 43), ("order status", 4), ("delivery", 4), ("stock level", 4))
KEPT: Final = 30
"""Delivered orders that a district keeps."""
LOCALITY: Final = 0.9
STEPS: Final = 3


class OrderLine(msgspec.Struct, array_like=True):
    """One item of an order."""

    item: int
    supplier: str
    quantity: int
    amount: int
    text: str
    """What the supplier says about its stock for this district."""
    is_delivered: bool = False


class Order(msgspec.Struct, array_like=True):
    """An order of a customer."""

    customer: int
    count: int
    """The number of its lines."""
    lines: list[OrderLine]
    carrier: int = 0
    """0: it is not delivered."""


class Customer(msgspec.Struct, array_like=True):
    """A customer of a district."""

    balance: int = 0
    """What the customer owes for delivered orders, minus what was paid."""
    paid: int = 0
    payments: int = 0
    delivered: int = 0
    """The amounts of all delivered orders."""


class District(msgspec.Struct, array_like=True):
    """A district of a warehouse."""

    paid: int = 0
    history: dict[str, int] = msgspec.field(default_factory=dict)
    """By customer, of any warehouse: what was paid here. TPC-C has a row for each payment."""
    next_order: int = 1
    customers: dict[int, Customer] = msgspec.field(default_factory=dict)
    orders: dict[int, Order] = msgspec.field(default_factory=dict)
    """By number; of the delivered ones, the last."""
    new_orders: list[int] = msgspec.field(default_factory=list)
    """The numbers of orders that are not delivered."""


class Stock(msgspec.Struct, array_like=True):
    """An item in a warehouse."""

    quantity: int = 50
    sold: int = 0
    orders: int = 0
    remote: int = 0
    """Of these, from other warehouses."""


class Warehouse(msgspec.Struct, array_like=True):
    """A warehouse with its districts."""

    paid: int = 0
    districts: list[District] = msgspec.field(default_factory=lambda: [District() for _ in range(DISTRICTS)])
    stock: dict[int, Stock] = msgspec.field(default_factory=dict)
    ordered: int = 0
    """Pieces in all lines of orders that were made here."""


Line = tuple[int, int]
"""Item and quantity."""
Offer = tuple[bool, dict[str, str]]
"""Whether the items of a group exist, and the texts of its stock by line."""


class Wholesaler(Service):
    """The warehouses of one group."""

    def __init__(self, group: str) -> None:
        self.warehouses: dict[str, Warehouse] = {}

    @classmethod
    def partition(cls, key: str, groups: Sequence[str]) -> str:
        """The group of a warehouse."""
        number = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and number.isdecimal():
            return groups[int(number) % len(groups)]
        return super().partition(key, groups)

    def _open(self, name: str) -> Warehouse:
        return self.warehouses.setdefault(name, Warehouse())

    @command
    def new_order(
        self, at: At, home: Key, district: int, customer: int, lines: list[Line], suppliers: list[Key]
    ) -> Generator[Offer, dict[str, Offer], int]:
        """Orders items, each from the supplier at the same place of the list; returns what they cost, or 0 if one of
        them does not exist: then nothing is ordered."""
        _check_place(district, customer)
        if len(lines) != len(suppliers) or not lines or any(quantity < 1 for _, quantity in lines):
            raise ValueError(f"{len(lines)} lines and {len(suppliers)} suppliers; expected as many, of 1 piece or more")
        mine = [place for place, supplier in enumerate(suppliers) if at.owns(supplier)]
        exists = all(1 <= lines[place][0] <= ITEMS for place in mine)
        texts = {str(place): f"{suppliers[place]} district {district} item {lines[place][0]}" for place in mine}
        offers = yield exists, texts
        if not all(offer[0] for offer in offers.values()):
            return 0
        for place in mine:
            self._supply(self._open(suppliers[place]), *lines[place], is_remote=suppliers[place] != home)
        total = sum(price_of(item) * quantity for item, quantity in lines)
        if at.owns(home):
            given = {place: text for offer in offers.values() for place, text in offer[1].items()}
            warehouse = self._open(home)
            one = warehouse.districts[district - 1]
            number, one.next_order = one.next_order, one.next_order + 1
            rows = [
                OrderLine(item, supplier, quantity, price_of(item) * quantity, given[str(place)])
                for place, ((item, quantity), supplier) in enumerate(zip(lines, suppliers, strict=True))
            ]
            one.orders[number] = Order(customer, len(rows), rows)
            one.new_orders.append(number)
            warehouse.ordered += sum(quantity for _, quantity in lines)
        return total

    def _supply(self, warehouse: Warehouse, item: int, quantity: int, is_remote: bool) -> None:
        stock = warehouse.stock.setdefault(item, Stock())
        stock.quantity += -quantity if stock.quantity >= quantity + 10 else 91 - quantity
        stock.sold += quantity
        stock.orders += 1
        stock.remote += is_remote

    @command
    def payment(
        self, at: At, home: Key, district: int, customer_home: Key, customer_district: int, customer: int, amount: int
    ) -> int:
        """Pays at a warehouse for a customer of any; returns what the customer's warehouse has as balance, else 0."""
        _check_place(district, customer)
        _check_place(customer_district, customer)
        if amount <= 0:
            raise ValueError(f"amount = {amount}; expected more than 0")
        if at.owns(home):
            warehouse = self._open(home)
            one = warehouse.districts[district - 1]
            warehouse.paid += amount
            one.paid += amount
            name = name_customer(customer_home, customer_district, customer)
            one.history[name] = one.history.get(name, 0) + amount
        if not at.owns(customer_home):
            return 0
        known = self._open(customer_home).districts[customer_district - 1].customers.setdefault(customer, Customer())
        known.balance -= amount
        known.paid += amount
        known.payments += 1
        return known.balance

    @command
    def delivery(self, at: At, home: Key, carrier: int) -> int:
        """Delivers the oldest new order of each district; returns how many there were."""
        if carrier < 1:
            raise ValueError(f"carrier = {carrier}; expected 1 or more")
        delivered = 0
        for district in self._open(home).districts:
            if not district.new_orders:
                continue
            order = district.orders[district.new_orders.pop(0)]
            order.carrier = carrier
            for line in order.lines:
                line.is_delivered = True
            customer = district.customers.setdefault(order.customer, Customer())
            amount = sum(line.amount for line in order.lines)
            customer.balance += amount
            customer.delivered += amount
            delivered += 1
            old = [number for number, one in district.orders.items() if one.carrier][:-KEPT]
            for number in old:
                del district.orders[number]
        return delivered

    @query
    def order_status(self, home: Key, district: int, customer: int) -> tuple[int, int, list[OrderLine]]:
        """Of a customer: the balance, the number of the last order (0: none is kept) and its lines."""
        _check_place(district, customer)
        one = self.warehouses.get(home, Warehouse()).districts[district - 1]
        last = max((number for number, order in one.orders.items() if order.customer == customer), default=0)
        lines = one.orders[last].lines if last else []
        return one.customers.get(customer, Customer()).balance, last, lines

    @query
    def stock_level(self, home: Key, district: int, threshold: int) -> int:
        """How many items of the last 20 orders of a district have less in stock than a threshold."""
        _check_place(district, 1)
        warehouse = self.warehouses.get(home, Warehouse())
        one = warehouse.districts[district - 1]
        items = {
            line.item
            for number, order in one.orders.items()
            if number >= one.next_order - 20
            for line in order.lines
            if line.supplier == home
        }
        return sum(warehouse.stock[item].quantity < threshold for item in items)

    @query
    def sums(self) -> tuple[int, int, int, int]:
        """Of a group: paid at warehouses, paid by customers, pieces ordered, pieces supplied."""
        houses = self.warehouses.values()
        return (
            sum(one.paid for one in houses),
            sum(
                customer.paid
                for one in houses
                for district in one.districts
                for customer in district.customers.values()
            ),
            sum(one.ordered for one in houses),
            sum(stock.sold for one in houses for stock in one.stock.values()),
        )


def price_of(item: int) -> int:
    """The price of an item: TPC-C draws it when it fills the table of items, which never changes."""
    return 100 + item * 37 % 9901


def name_customer(home: str, district: int, customer: int) -> str:
    """Names a customer among all warehouses."""
    return f"{home}/{district}/{customer}"


def _check_place(district: int, customer: int) -> None:
    if not 1 <= district <= DISTRICTS:
        raise ValueError(f"district = {district}; expected 1 to {DISTRICTS}")
    if not 1 <= customer <= CUSTOMERS:
        raise ValueError(f"customer = {customer}; expected 1 to {CUSTOMERS}")


# Consistency


def find_inconsistency(services: Mapping[str, Wholesaler]) -> str | None:
    """An invariant: the consistency conditions of TPC-C, clause 3.3.2, within warehouses and between them."""
    for service in services.values():
        for name, warehouse in service.warehouses.items():
            wrong = judge_warehouse(warehouse)
            if wrong is not None:
                return f"{name}: {wrong}"
    return judge_payments(services) or judge_sums({group: service.sums() for group, service in services.items()})


def judge_warehouse(warehouse: Warehouse) -> str | None:
    """Which of the conditions 1 to 9, 11 and 12 a warehouse breaks; None if none. 8 follows from 1 and 9."""
    paid = sum(district.paid for district in warehouse.districts)
    if warehouse.paid != paid:
        return f"conditions 1 and 8: {warehouse.paid} was paid; expected that of all districts, {paid}"
    for number, district in enumerate(warehouse.districts, start=1):
        wrong = _judge_district(district)
        if wrong is not None:
            return f"district {number}: {wrong}"
    return None


def _judge_district(district: District) -> str | None:
    if district.paid != sum(district.history.values()):
        return f"condition 9: {district.paid} was paid; expected {sum(district.history.values())}, as in the history"
    last = max(district.orders, default=district.next_order - 1)
    if district.next_order - 1 != last:
        return f"condition 2: the next order is {district.next_order}, and the last one {last}"
    new = district.new_orders
    if new and (new[-1] != last or new[-1] - new[0] + 1 != len(new)):
        return f"condition 3: {len(new)} new orders from {new[0]} to {new[-1]}; expected all up to {last}"
    for number, order in district.orders.items():
        if len(order.lines) != order.count:
            return f"conditions 4 and 6: order {number} has {len(order.lines)} lines; expected {order.count}"
        if (order.carrier == 0) != (number in new):
            return f"conditions 5 and 11: order {number} has carrier {order.carrier}; expected one unless it is new"
        if any(line.is_delivered != (order.carrier > 0) for line in order.lines):
            return f"condition 7: order {number} has carrier {order.carrier}, and lines that say otherwise"
    for number, customer in district.customers.items():
        if customer.balance + customer.paid != customer.delivered:
            return (
                f"condition 12: customer {number} has balance {customer.balance} and paid {customer.paid}; expected"
                f" {customer.delivered} together, the orders that were delivered"
            )
    return None


def judge_payments(services: Mapping[str, Wholesaler]) -> str | None:
    """Condition 10, between warehouses: a customer has paid what the histories of all warehouses say."""
    histories: dict[str, int] = {}
    customers: dict[str, int] = {}
    for service in services.values():
        for home, warehouse in service.warehouses.items():
            for district, one in enumerate(warehouse.districts, start=1):
                for name, amount in one.history.items():
                    histories[name] = histories.get(name, 0) + amount
                customers |= {name_customer(home, district, n): c.paid for n, c in one.customers.items() if c.paid}
    for name in sorted(histories.keys() | customers.keys()):
        if histories.get(name, 0) != customers.get(name, 0):
            return (
                f"condition 10: {name} has paid {customers.get(name, 0)}; expected {histories.get(name, 0)}, as in the"
                f" histories of all warehouses"
            )
    return None


def judge_sums(by_group: Mapping[str, tuple[int, int, int, int]]) -> str | None:
    """What is wrong with the sums of all groups; None if nothing is."""
    paid, customers, ordered, sold = (sum(one[place] for one in by_group.values()) for place in range(4))
    if paid != customers:
        return f"{paid} was paid at warehouses; expected {customers}, what customers have paid"
    if ordered != sold:
        return f"{ordered} pieces were ordered; expected {sold}, what stocks have given"
    return None


# Load


async def work(client: Any) -> None:
    """One round of a client: transactions by TPC-C's mix at its home warehouse, with the locality of gTPC-C."""
    shop, random, count = client.service(Wholesaler), client.random, max(2, len(client.groups))
    kinds, weights = zip(*MIX, strict=True)
    for _ in range(STEPS):
        home = f"{PREFIX}{client.number % count}"
        district, customer = random.randint(1, DISTRICTS), random.randint(1, CUSTOMERS)
        kind = random.choices(kinds, weights)[0]
        if kind == "new order":
            await _order(shop, random, home, count, district, customer)
        elif kind == "payment":
            other = choose_near(random, home, count) if random.random() < REMOTE_CUSTOMER else home
            place, amount = random.randint(1, DISTRICTS), random.randint(100, 500_000)
            await shop.payment(home, district, other, place, customer, amount)
        elif kind == "delivery":
            await shop.delivery(home, random.randint(1, 10))
        elif kind == "order status":
            await shop.order_status(home, district, customer)
        else:
            await shop.stock_level(home, district, random.randint(10, 20))
    if random.random() < 0.2:
        wrong = judge_sums((await shop.sums()).by_group)
        assert wrong is None, wrong


async def _order(shop: Any, random: Any, home: str, count: int, district: int, customer: int) -> None:
    number = random.randint(*ORDER_ITEMS)
    lines = [(random.randint(1, ITEMS), random.randint(1, 10)) for _ in range(number)]
    is_unknown = random.random() < UNKNOWN_ITEM
    if is_unknown:
        lines[-1] = ITEMS + 1, 1
    suppliers = [choose_near(random, home, count) if random.random() < REMOTE_ITEM else home for _ in lines]
    outcome = await shop.new_order(home, district, customer, lines, suppliers)
    expected = 0 if is_unknown else sum(price_of(item) * quantity for item, quantity in lines)
    assert set(outcome.by_group.values()) == {expected}, f"an order of {expected} cost {outcome.by_group}"


def choose_near(random: Any, home: str, count: int) -> str:
    """Another warehouse: the nearest with the rate of locality, else the next nearest, and so on."""
    number = int(home.removeprefix(PREFIX))
    for distance in range(1, count - 1):
        if random.random() < LOCALITY:
            return f"{PREFIX}{(number + distance) % count}"
    return f"{PREFIX}{(number + count - 1) % count}"
