"""The audit log: who did what, one line of JSON each; operators' actions are never left out."""

import io
import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import UsageError
from amcast.live.audit_log import MAX_NAMES, OPERATOR_ACTIONS, AuditLog, audit_log, close_audit, configure_audit
from amcast.live.config.certificates import make_certificates
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetNodeStatus, Subscribe
from tests.live.cluster import run
from tests.live.secure_cluster import say, secured, until


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_audit("orders/1", None, stream)
    yield stream
    close_audit()


def entries(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_flood_of_one_action_is_counted_and_hides_no_operator(lines: io.StringIO) -> None:
    audit = AuditLog(max_lines=5, window_s=60)
    for number in range(100):
        audit.record("refused", "client guest", f"10.0.0.1:{number}", reason="no")
        audit.record("change requested", "client ops", message=number)
    audit.record("connected", "client till")
    audit.flush()
    found = entries(lines)
    assert sum(one["action"] == "refused" for one in found) == 5
    assert sum(one["action"] == "change requested" for one in found) == 100
    assert sum(one["action"] == "connected" for one in found) == 1
    assert found[-1] == found[-1] | {"action": "omitted", "of": "refused", "lines": 95}
    assert audit.omitted == 95


def test_flood_of_one_peer_hides_nothing_of_others(lines: io.StringIO) -> None:
    """Peers that fail to identify themselves, and a client, each until their lines are used up."""
    audit = AuditLog(max_lines=5, window_s=60)
    for number in range(100):
        audit.record("refused", "", f"10.0.0.1:{number}", reason="TLS")
        audit.record("refused", "client guest", "10.0.0.2:1", reason="no")
    audit.record("refused", "client thief", "10.0.0.3:1", reason="it may not read group 0")
    found = entries(lines)
    assert found[-1]["who"] == "client thief"
    assert len(found) == 11
    audit.flush()
    assert [(one["of"], one.get("who"), one["lines"]) for one in entries(lines)[11:]] == [
        ("refused", None, 95),
        ("refused", "client guest", 95),
    ]


def test_number_of_names_is_bounded(lines: io.StringIO) -> None:
    audit = AuditLog(max_lines=5, window_s=60)
    for number in range(3 * MAX_NAMES):
        audit.record("refused", f"10.0.{number // 250}.{number % 250}")
    assert len(entries(lines)) == MAX_NAMES + 5
    assert audit.omitted == 2 * MAX_NAMES - 5


def test_omitted_lines_are_counted_when_a_window_ends(lines: io.StringIO) -> None:
    audit = AuditLog(max_lines=2, window_s=60)
    for _ in range(6):
        audit.record("refused", "client guest")
    audit._began -= 60
    audit.record("connected", "client till")
    actions = [one["action"] for one in entries(lines)]
    assert actions == ["refused", "refused", "omitted", "connected"]


def test_line_stays_one_line_whatever_a_peer_says(lines: io.StringIO) -> None:
    audit_log.record("refused", 'x"\n{"action": "reloaded"}', reason="\u2028\x1b[2J")
    assert len(lines.getvalue().splitlines()) == 1
    assert entries(lines)[0]["action"] == "refused"


def test_audit_file_is_private_and_no_link_leads_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    configure_audit("orders/1", folder)
    audit_log.record("started")
    close_audit()
    file = folder / "orders-1.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    other = tmp_path / "other"
    other.write_text("unharmed")
    file.unlink()
    file.symlink_to(other)
    with pytest.raises(UsageError, match="it is a symbolic link"):
        configure_audit("orders/1", folder)
    assert other.read_text() == "unharmed"


@pytest.mark.live
@pytest.mark.slow
def test_node_records_who_did_what(tmp_path: Path) -> None:
    made = secured(tmp_path, {"orders": 1, "stock": 1}, audit="audit")
    files = [tmp_path / f"audit/{node}.log" for node in ("orders-1", "stock-1")]

    def text() -> str:
        return "".join(file.read_text() for file in files)

    def found(action: str) -> list[dict[str, object]]:
        return [one for line in text().splitlines() if (one := json.loads(line))["action"] == action]

    async def main() -> None:
        async with connect(made, client="till") as till:
            await till.multicast({"orders", "stock"}, b"secret payload")
            guest = RpcClient(made.name, made.addresses, made.limits, made.client_transport("guest"))
            for request in (GetNodeStatus(), Subscribe(0, 0)):
                with pytest.raises(NoAnswerError):
                    await guest.request(0, request)
            await say(made.addresses[0], b"GET / HTTP/1.1\r\n\r\n")
            nodes.signal("orders/1", signal.SIGHUP)
            await until(lambda: bool(found("reloaded")))

    with local_cluster(made) as nodes:
        run(main(), timeout_s=60)
    assert [one["node"] for one in found("started")] == ["orders/1", "stock/1"]
    assert {"client till", "node stock/1"} <= {str(one["who"]) for one in found("connected")}
    assert {"GetNodeStatus", "Subscribe"} <= {one["request"] for one in found("requested")}
    refused = [(one.get("who"), str(one["reason"])) for one in found("refused")]
    assert any(who == "client guest" and "may not request the status" in reason for who, reason in refused)
    assert any(who == "client guest" and "may not read group 0" in reason for who, reason in refused)
    assert any("TLS" in reason for _, reason in refused)
    assert found("stopped")
    assert "secret" not in text()
    assert {one["action"] for one in found("reloaded")} <= OPERATOR_ACTIONS


@pytest.mark.live
def test_files_of_a_node_are_private(tmp_path: Path) -> None:
    """Keys, data, logs, traces and steps can be read by their owner only."""
    made = secured(tmp_path, {"orders": 1}, {"till": {"groups": "all"}}, durability="os",
                   trace={"mode": "deliveries", "folder": "run"})  # fmt: skip

    async def main() -> None:
        async with connect(made, client="till") as till:
            await till.multicast({"orders"}, b"x")

    with local_cluster(made, steps=tmp_path / "steps"):
        run(main(), timeout_s=60)
    files = [file for folder in ("data", "run", "steps") for file in (tmp_path / folder).rglob("*")]
    files += [tmp_path / folder for folder in ("certs", "data", "steps")]
    assert len(files) > 6
    files += (tmp_path / "certs").glob("*.key")
    readable = [str(file) for file in files if file.stat().st_mode & 0o077]
    assert not readable


def test_certificates_do_not_follow_links(tmp_path: Path) -> None:
    made = secured(tmp_path)
    other = tmp_path / "other"
    other.write_text("unharmed")
    for name in ("client-till.pem", ".client-till.pem", ".client-till.key", "client-till.key"):
        link = tmp_path / "certs" / name
        link.unlink(missing_ok=True)
        link.symlink_to(other)
    make_certificates(made)
    assert other.read_text() == "unharmed"
    assert not (tmp_path / "certs/client-till.key").is_symlink()
