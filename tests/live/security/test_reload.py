"""SIGHUP: a node stops trusting a former authority, revoked certificates and clients that lost their rights, also on
connections that are open."""

import re
import shutil
import ssl
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from amcast.cluster import connect
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.config import certificates as certs
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.rpc.client import NoAnswerError, RpcCall, RpcClient
from amcast.live.rpc.messages import GetProgress, Progress, RpcEnvelope, Subscribe, encode_request
from amcast.live.server.node import reload_configuration
from amcast.live.server.replica import Replica
from amcast.live.wire.frames import WIRE_VERSION, find_framing
from tests.live.cluster import run
from tests.live.secure_cluster import listening, replicas, say, secured

pytestmark = pytest.mark.live


def asker(made: Cluster, client: str) -> RpcClient:
    """A client with the certificates as they are now."""
    return RpcClient(made.name, made.addresses, made.limits, made.client_transport(client))


async def read_to_end(call: RpcCall) -> None:
    while True:
        await call.reply()


def reload(made: Cluster, running: dict[int, Replica]) -> None:
    for replica in running.values():
        reload_configuration(made, replica.host)


def test_new_authority_ends_trust_in_the_old_one(tmp_path: Path) -> None:
    made = secured(tmp_path)

    # It accepts any server, so that only the server's judgement counts.
    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE
    careless.load_cert_chain(tmp_path / "certs/client-till.pem", tmp_path / "certs/client-till.key")
    request = encode_request(
        RpcEnvelope(WIRE_VERSION, made.name, 0, GetProgress()), find_framing(WIRE_VERSION, is_plain=False)
    )

    async def main() -> None:
        async with replicas(made) as running:
            subscription = await asker(made, "till").call(0, Subscribe(0, 0))
            await subscription.reply()
            assert b"Progress" in await say(made.addresses[0], request, careless)
            shutil.rmtree(tmp_path / "certs")
            certs.make_certificates(made)
            with listening() as lines:
                reload(made, running)
                with pytest.raises(NoAnswerError):
                    await read_to_end(subscription)
                assert await say(made.addresses[0], request, careless) == b""
                assert lines.having("certificate not accepted")
            assert isinstance(await asker(made, "till").request(0, GetProgress()), Progress)
            async with connect(made, client="till") as till:
                await till.multicast({"orders", "stock"}, b"after", timeout_s=20)

    run(main(), timeout_s=60)


def test_authority_replaced_during_a_reload_is_a_change_at_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reload may still trust the old authority: what it lets in must end with the second one."""
    made = secured(tmp_path)
    security = made.node_transport("orders/1").security
    assert security is not None
    make_contexts = security._make_contexts

    def make_contexts_of_the_old_files() -> tuple[ssl.SSLContext, ssl.SSLContext]:
        contexts = make_contexts()
        shutil.rmtree(tmp_path / "certs")
        certs.make_certificates(made)
        return contexts

    with monkeypatch.context() as patch:
        patch.setattr(security, "_make_contexts", make_contexts_of_the_old_files)
        security.reload()
    assert security.reload()
    assert not security.reload()


def test_no_session_can_be_resumed_without_a_certificate(tmp_path: Path) -> None:
    made = secured(tmp_path)
    node, till = made.node_transport("orders/1").security, made.client_transport("till").security
    assert node is not None
    assert till is not None
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = node.server.wrap_bio(there, back, server_side=True), till.client.wrap_bio(back, there)
    for _ in range(3):
        for end in (client, server):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    server.write(b"x")
    assert client.read() == b"x"
    assert client.session is None or not client.session.has_ticket


def test_renewed_certificate_of_the_same_authority_ends_nothing(tmp_path: Path) -> None:
    made = secured(tmp_path)

    async def main() -> None:
        async with replicas(made) as running, connect(made, client="till") as till:
            await till.multicast({"orders", "stock"}, b"before")
            connections = set(running[0].host.network._connections)
            certs.make_certificates(made, renew=True)
            reload(made, running)
            await till.multicast({"orders", "stock"}, b"after")
            assert connections <= running[0].host.network._connections

    run(main(), timeout_s=60)


def test_revoked_certificate_is_refused_and_its_connections_end(tmp_path: Path) -> None:
    made = secured(tmp_path)
    certs.Authority.read(tmp_path / "certs/ca.pem").revoke(tmp_path / "certs/revoked.pem", set())
    text = made.file.read_text().replace('mode = "tls"', 'mode = "tls"\nrevocations = "certs/revoked.pem"')
    made.file.write_text(text)
    made = read_cluster(made.file)

    async def main() -> None:
        async with replicas(made) as running:
            guest = asker(made, "guest")
            subscription = await guest.call(1, Subscribe(1, 0))
            await subscription.reply()
            assert certs.revoke_certificates(made, ["guest"])[1] == 1
            reload(made, running)
            with pytest.raises(NoAnswerError):
                await read_to_end(subscription)
            with pytest.raises(NoAnswerError):
                await guest.request(1, GetProgress())
            with pytest.raises(UsageError, match="certificate revoked"):
                made.client_transport("guest")
            async with connect(made, client="till") as till:
                await till.multicast({"orders", "stock"}, b"x", timeout_s=20)

    run(main(), timeout_s=60)


def test_client_that_lost_its_rights_loses_its_connections_and_others_keep_theirs(tmp_path: Path) -> None:
    made = secured(tmp_path)

    async def main() -> None:
        async with replicas(made) as running, connect(made, client="till") as till:
            await till.multicast({"orders", "stock"}, b"before")
            guest = asker(made, "guest")
            subscription = await guest.call(1, Subscribe(1, 0))
            await subscription.reply()
            kept = [one for one in running[1].host.network._connections if one.describe_owner() == "client till"]
            text = re.sub(r"(\[clients.guest\]\n)groups = .*\n", r"\1groups = []\n", made.file.read_text())
            made.file.write_text(text)
            reload(made, running)
            with pytest.raises(NoAnswerError):
                await read_to_end(subscription)
            again = await guest.call(1, Subscribe(1, 0))
            with pytest.raises(NoAnswerError, match="client guest may not read group 1"):
                await again.reply()
            assert kept
            assert set(kept) <= running[1].host.network._connections
            await till.multicast({"orders", "stock"}, b"after")

    run(main(), timeout_s=60)


def test_invalid_files_leave_everything_as_it_was(tmp_path: Path) -> None:
    made = secured(tmp_path)

    async def main() -> None:
        async with replicas(made) as running:
            till = asker(made, "till")
            (tmp_path / "certs/ca.pem").write_text("no certificate")
            with listening() as lines:
                reload(made, running)
            assert lines.having("the old certificates and clients stay in use")
            assert isinstance(await till.request(0, GetProgress()), Progress)

    run(main(), timeout_s=60)


def test_connection_ends_when_its_certificate_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = secured(tmp_path)
    authority = certs.Authority.read(tmp_path / "certs/ca.pem")
    guest = certs.list_subjects(made)[-1]
    monkeypatch.setattr(certs, "timedelta", lambda days: timedelta(seconds=3))

    async def main() -> None:
        async with replicas(made):
            authority.issue(tmp_path / f"certs/{guest.file_stem}.pem", guest, 1)
            asking = asker(made, guest.name)
            subscription = await asking.call(1, Subscribe(1, 0))
            await subscription.reply()
            with pytest.raises(CannotTellError, match="its certificate has expired"):
                await read_to_end(subscription)

    run(main(), timeout_s=60)
