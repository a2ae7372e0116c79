"""Bundles, and the effects and events that stand for many messages."""

import pytest

from amcast.kernel.bundle import (
    FIRST_GATEWAY,
    bundle_headers,
    bundle_messages,
    gateway_process,
    gateway_sender,
    is_bundle,
    make_bundle,
)
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Requests
from amcast.kernel.ids import MESSAGES_PER_SENDER, message_id
from amcast.kernel.message import Message, Request

GROUPS = (0, 1)


def make_message(client: int, sequence: int, size: int = 1) -> Message:
    return Message(message_id(client, sequence), client, GROUPS, bytes(size))


def test_bundle_decodes_to_its_messages() -> None:
    messages = [make_message(6, 0), make_message(7, 3, size=100)]
    bundle = make_bundle(gateway_sender(2, 5), 9, GROUPS, messages)
    assert bundle_messages(bundle) == messages
    assert is_bundle(bundle.id)
    assert not is_bundle(messages[1].id)
    assert gateway_process(bundle.sender) == 2
    assert bundle.id < 2**63
    assert bundle_messages(Message(bundle.id, bundle.sender, GROUPS, b"\xff")) == []


def test_gateway_ids_differ_by_process_and_incarnation() -> None:
    ids = {gateway_sender(process, incarnation) for process in (0, 1, 4095) for incarnation in (0, 1, 2**20 - 1)}
    assert len(ids) == 9
    assert min(ids) == FIRST_GATEWAY
    assert max(ids) * MESSAGES_PER_SENDER + MESSAGES_PER_SENDER - 1 < 2**63
    with pytest.raises(UsageError, match="process 4096 is a gateway"):
        gateway_sender(4096, 0)
    with pytest.raises(UsageError, match="fewer than 1048576 incarnations"):
        gateway_sender(0, 2**20)


def test_delivery_of_a_bundle_expands_to_its_new_messages() -> None:
    messages = (make_message(6, 0), make_message(7, 0))
    bundle = make_bundle(gateway_sender(0, 0), 0, GROUPS, list(messages))
    delivery = Deliver(bundle, 10, 5, bundle.id, message_count=2)
    assert [(one.message.id, one.position) for one in delivery.expand()] == [(messages[0].id, 10), (messages[1].id, 11)]
    second = Deliver(bundle, 12, 5, bundle.id, message_count=1, duplicate_places=(0,))
    assert second.messages() == [messages[1]]
    assert Deliver(bundle, 12, 5, bundle.id, message_count=0, duplicate_places=(0, 1)).expand() == []
    with pytest.raises(AssertionError, match="2 messages; expected 1"):
        Deliver(bundle, 12, 5, bundle.id, message_count=1).messages()
    assert [(header.id, header.sender) for header in bundle_headers(bundle)] == [(m.id, m.sender) for m in messages]
    assert Deliver(messages[0], 3).expand() == [Deliver(messages[0], 3)]


def test_requests_expand_to_a_receive_for_each() -> None:
    messages = [make_message(6, 0), make_message(7, 0), make_message(6, 1)]
    receives = Requests(messages).expand()
    assert [(event.sender, event.body) for event in receives] == [(m.sender, Request(m)) for m in messages]
