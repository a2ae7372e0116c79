"""Mutual TLS: certificates name their owner; a wrong name, process id or permission is refused."""

import asyncio
import shutil
import socket
import ssl
import stat
from pathlib import Path

import pytest

from amcast.cluster import cluster_spec, connect, run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message, Request
from amcast.live.config import certificates as certs
from amcast.live.config.cluster import read_cluster
from amcast.live.errors import RefusedError
from amcast.live.log_output import configure_logging
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import FetchState
from amcast.live.security.permissions import FIRST_CLIENT_ID, IDS_PER_CLIENT, Subject
from amcast.live.security.tls import Security
from amcast.live.server.node import reload_configuration
from amcast.live.server.replica import Replica
from amcast.live.wire import frames as wire
from amcast.live.wire.frames import Codec, Hello
from tests.live.cluster import run
from tests.live.secure_cluster import CLIENTS, listening, plain, replicas, say, secured, until

TILL = FIRST_CLIENT_ID
GUEST = FIRST_CLIENT_ID + IDS_PER_CLIENT

needs_sockets = pytest.mark.live


def greeting(process: int, target: int, cluster: str = "local", protocol: str = "primcast") -> bytes:
    return wire.encode_hello(Hello(wire.WIRE_VERSION, cluster, protocol, process, target, 0, 1, None, 0, 1))


@needs_sockets
def test_clients_may_address_only_their_groups(tmp_path: Path) -> None:
    cluster = secured(tmp_path, {"orders": 3, "stock": 3})

    async def main() -> None:
        async with replicas(cluster) as running:
            async with connect(cluster, client="till") as till:
                for _ in range(20):
                    await till.multicast({"orders", "stock"}, b"x")
                assert TILL <= till.me < TILL + IDS_PER_CLIENT
            async with connect(cluster, client="guest") as guest:
                await guest.multicast({"stock"}, b"x")
                assert GUEST <= guest.me < GUEST + IDS_PER_CLIENT
                with pytest.raises(UsageError, match="guest may not address"):
                    await guest.multicast({"orders"}, b"x")
            await until(lambda: all(replica.position >= 20 for replica in running.values()))

    run(main())


@needs_sockets
def test_payloads_are_encrypted(tmp_path: Path) -> None:
    cluster = secured(tmp_path)
    taps: list[bytes] = []

    async def main() -> None:
        async with replicas(cluster):
            host, port = cluster.addresses[0]
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(greeting(TILL, 0))
            taps.append(await reader.read())
            writer.close()
            async with connect(cluster, client="till") as till:
                await till.multicast({"orders"}, b"a secret sentence")

    with listening() as log:
        run(main())
    assert b"process" not in taps[0]
    assert len(log.having("refused: TLS:")) == 1
    assert not log.having("a secret sentence")


@needs_sockets
@pytest.mark.parametrize(
    ("who", "process", "target", "sentence"),
    [
        ("client-guest", TILL, 0, "but its certificate names client guest, which owns"),
        ("client-guest", 1, 0, "it claims to be process 1, but its certificate names client guest"),
        ("node-stock-1", TILL, 0, "but its certificate names node stock/1"),
        ("node-stock-1", 1, 0, ""),
        ("client-gone", GUEST + IDS_PER_CLIENT, 0, "client gone is not in the configuration"),
        ("node-stock-9", 1, 0, "node stock/9, which is no node of cluster 'local'"),
    ],
)
def test_peer_that_claims_another_identity_is_refused(
    tmp_path: Path, who: str, process: int, target: int, sentence: str
) -> None:
    """The certificate is valid; only the claimed process id is wrong (except for one valid row)."""
    cluster = secured(tmp_path)
    kind, _, name = who.partition("-")
    subject = Subject("local", kind, name.replace("-", "/"))
    authority = certs.Authority.read(tmp_path / "certs" / "ca.pem")
    authority.issue(tmp_path / "certs" / f"{who}.pem", subject, 1)
    context = Security(tmp_path / "certs" / "ca.pem", tmp_path / "certs", subject, cluster.permissions()).client
    answers: list[bytes] = []

    async def main() -> None:
        async with replicas(cluster) as running:
            if sentence:
                answers.append(await say(cluster.addresses[target], greeting(process, target), context))
            async with connect(cluster, client="till") as till:
                await till.multicast({"orders", "stock"}, b"x")
            await until(lambda: running[0].host.network.is_connected(1))

    with listening() as log:
        run(main())
    if sentence:
        assert sentence.encode() in answers[0]
        assert len(log.having(sentence)) == 1
    assert bool(log.having("refused")) is bool(sentence)


@needs_sockets
def test_foreign_and_expired_certificates_are_refused(tmp_path: Path) -> None:
    """Another authority, another cluster of the same authority, an expired certificate, and none."""
    cluster = secured(tmp_path)
    (tmp_path / "other").mkdir()
    other = secured(tmp_path / "other", name="local")
    authority = certs.Authority.read(tmp_path / "certs" / "ca.pem")
    authority.issue(tmp_path / "certs" / "client-alien.pem", Subject("elsewhere", "client", "till"), 1)

    def showing(file: Path | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=tmp_path / "certs" / "ca.pem")
        context.check_hostname = False
        if file is not None:
            context.load_cert_chain(file, file.with_suffix(".key"))
        return context

    cases = {
        "TLS: certificate not accepted": showing(other.file.parent / "certs" / "client-till.pem"),
        "for cluster 'elsewhere'; this is 'local'": showing(tmp_path / "certs" / "client-alien.pem"),
        "TLS: peer did not return a certificate": showing(None),
    }

    async def main() -> None:
        async with replicas(cluster):
            for sentence, context in cases.items():
                await say(cluster.addresses[0], greeting(TILL, 0), context)
                await until(lambda sentence=sentence: log.having(sentence))
            old = showing(None)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
            await say(cluster.addresses[0], greeting(TILL, 0), old)
            await until(lambda: log.having("TLS: unsupported protocol"))
            async with connect(cluster, client="till") as till:
                await till.multicast({"orders", "stock"}, b"x")

    with listening() as log:
        run(main())


@needs_sockets
def test_client_that_exceeds_its_permissions_is_refused(tmp_path: Path) -> None:
    cluster = secured(tmp_path)
    context = cluster.client_transport("guest").secured
    coder = Codec(cluster_spec(cluster).wire_bodies())
    asked = Request(Message(GUEST * 10**9, GUEST, (0,), b"let me in"))
    answers: list[bytes] = []

    async def main() -> None:
        async with replicas(cluster) as running:
            sent = greeting(GUEST, 0) + coder.encode_frame(
                1, 0, [coder.encode(asked)], wire.find_framing(wire.WIRE_VERSION, False)
            )
            answers.append(await say(cluster.addresses[0], sent, context))
            async with connect(cluster, client="till") as till:
                await till.multicast({"orders"}, b"x")
            assert running[0].position == 1

    with listening() as log:
        run(main())
    assert b"client guest may not address groups [0]" in answers[0]
    assert len(log.having("client guest may not address groups [0]")) == 1
    assert not log.having("let me in")


@needs_sockets
def test_dialler_refuses_a_certificate_of_another_node(tmp_path: Path) -> None:
    """A process with a valid certificate of another node listens at a node's address."""
    cluster = secured(tmp_path, {"orders": 1, "stock": 1})
    folder = tmp_path / "certs"
    for suffix in (".pem", ".key"):
        shutil.copy(folder / f"node-stock-1{suffix}", folder / f"impostor{suffix}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "impostor.pem", folder / "impostor.key")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(wire.HEAD_BYTES)
        await reader.readexactly(wire.HEAD.unpack(head)[0] - 2)
        writer.write(greeting(0, 1))
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, *cluster.addresses[0], ssl=context)
        try:
            async with connect(cluster, client="till", me=TILL, connect_s=1.0):
                pass
        except CannotTellError:
            pass
        finally:
            server.close()

    with listening() as log:
        run(main())
    assert log.having("refused: it claims to be process 0, but its certificate names node stock/1")


def test_made_certificates_are_valid_and_renewed(tmp_path: Path) -> None:
    cluster = secured(tmp_path)
    folder = tmp_path / "certs"
    for key in folder.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert not any(made.is_new for made in certs.make_certificates(cluster))
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder / "client-till.key").unlink()
    assert [made.name for made in certs.make_certificates(cluster) if made.is_new] == ["client till"]
    shutil.copy(folder / "client-till.pem", folder / "client-guest.pem")
    assert [made.name for made in certs.make_certificates(cluster) if made.is_new] == ["client guest"]
    assert [made.name for made in certs.make_certificates(cluster, renew=True) if not made.is_new] == ["authority"]
    assert len([made for made in certs.make_certificates(cluster, days=400) if made.is_new]) == 0
    with pytest.raises(UsageError, match="days = 0; expected 1 or more"):
        certs.make_certificates(cluster, 0)
    (folder / "ca.key").write_text("nonsense")
    with pytest.raises(UsageError, match=r"ca\.key.*expected an authority"):
        certs.make_certificates(cluster)


def swap(folder: Path) -> None:
    for suffix in ("pem", "key"):
        shutil.copy(folder / f"node-stock-1.{suffix}", folder / f"node-orders-1.{suffix}")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda at: (at / "ca.pem").unlink(), r"ca\.pem does not exist; expected the authority's certificate"),
        (lambda at: (at / "node-orders-1.key").unlink(), r"node-orders-1\.key does not exist; expected the key"),
        (lambda at: (at / "ca.pem").write_text("x"), r"ca\.pem: .*; expected a PEM certificate"),
        (lambda at: (at / "node-orders-1.pem").write_text("x"), r"node-orders-1\.pem: .*; expected a PEM"),
        (lambda at: shutil.copy(at / "ca.key", at / "node-orders-1.key"), "expected a PEM certificate with"),
        (swap, r"names node stock/1 of cluster 'local'; expected node orders/1"),
    ],
)
def test_wrong_certificates_are_reported_at_start(tmp_path: Path, spoil: object, sentence: str) -> None:
    cluster = secured(tmp_path)
    spoil(tmp_path / "certs")  # type: ignore[operator]
    with pytest.raises(UsageError, match=sentence):
        cluster.node_transport("orders/1")


def test_certificate_of_another_authority_is_reported_at_start(tmp_path: Path) -> None:
    cluster = secured(tmp_path)
    shutil.move(tmp_path / "certs" / "ca.pem", tmp_path / "old.pem")
    (tmp_path / "other").mkdir()
    shutil.copy(secured(tmp_path / "other").file.parent / "certs" / "ca.pem", tmp_path / "certs" / "ca.pem")
    with pytest.raises(UsageError, match=r"node-orders-1\.pem: certificate not accepted"):
        cluster.node_transport("orders/1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[security]\nmode = 'ssl'", "security.mode: Invalid enum value 'ssl'"),
        ("[security]\ntls = true", "security: Object contains unknown field `tls`"),
        ("[security]\nmode = 'plain'", 'security.mode = "plain" with the address \'10.0.0.1\'; expected mode "tls"'),
        ("[clients.a]\ngroups = ['x']", "clients.a.groups: 'x' does not exist; expected some of ['orders']"),
        ("[clients.a]\ngroups = 'some'", "clients.a.groups = 'some'; expected \"all\" or a list of groups"),
        ("[clients.a]\nid = -1", "clients.a.id = -1; expected 0 to 510"),
        ("[clients.a]\nid = 1\n[clients.b]", "clients.b.id = 1; a has this id already"),
        ("[clients.' a']", "clients: the name ' a'; expected one without spaces around it"),
        ("[clients.a]\nrights = 1", "unknown field `rights`"),
        ("wire = [2, 1]", "wire = [2, 1]; expected [oldest, newest] between 6 and 6"),
        ("wire = [0, 2]", "wire = [0, 2]; expected"),
        ("wire = [1, 99]", "wire = [1, 99]; expected"),
        ("logs = 'xml'", "logs: Invalid enum value 'xml'"),
    ],
)
def test_invalid_security_error_names_the_field(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "cluster.toml"
    groups = "[groups.orders]\nreplicas = ['10.0.0.1:7001']\n"
    top, tables = ("", text) if text.startswith("[") else (text, "")
    file.write_text(f"name = 'x'\n{top}\n{groups}{tables}\n")
    with pytest.raises(UsageError) as refused:
        read_cluster(file)
    assert str(file) in str(refused.value)
    assert sentence in str(refused.value)


def test_plain_mode_requires_loopback_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"

    def text(address: str, more: str = "", table: str = "") -> str:
        return (
            f"name = 'x'\n[security]\nmode = 'plain'\n{more}\n"
            f"[groups.orders]\nreplicas = [{{ address = '{address}:7001'{table} }}]\n"
        )

    for address in ("127.0.0.1", "127.8.9.10", "[::1]", "localhost"):
        file.write_text(text(address))
        read_cluster(file)
    for address in ("0.0.0.0", "10.1.2.3", "example.com", "[::]"):
        file.write_text(text(address))
        with pytest.raises(UsageError, match="plain_beyond_loopback = true"):
            read_cluster(file)
    file.write_text(text("10.1.2.3", "plain_beyond_loopback = true"))
    assert read_cluster(file).client_transport().security is None
    file.write_text(text("localhost", table=", listen = '0.0.0.0:7001'"))
    with pytest.raises(UsageError, match=r"the address '0\.0\.0\.0'"):
        read_cluster(file)
    file.write_text(text("localhost", table=", http = '0.0.0.0:9001'"))
    with pytest.raises(UsageError, match="http_beyond_loopback = true"):
        read_cluster(file)
    file.write_text(text("localhost") + "[clients.a]\ngroups = 'all'\n")
    with pytest.raises(UsageError, match=r'clients\.a with security\.mode = "plain"'):
        read_cluster(file)


def test_client_name_is_required_where_there_are_several(tmp_path: Path) -> None:
    cluster = secured(tmp_path)
    with pytest.raises(UsageError, match=r"has several clients, and none is named; expected one of: till, guest"):
        cluster.client_transport()
    with pytest.raises(UsageError, match="client 'nobody' does not exist"):
        cluster.client_transport("nobody")
    (tmp_path / "one").mkdir()
    assert (
        str(secured(tmp_path / "one", clients={"till": CLIENTS["till"]}).client_transport().security.me)
        == "client till"
    )  # type: ignore[union-attr]
    (tmp_path / "two").mkdir()
    assert plain(tmp_path / "two").client_transport("anybody").security is None


@pytest.mark.parametrize(
    "uris",
    [[], ["http://x"], ["amcast://shop/node/a/1", "amcast://shop/node/a/2"], ["amcast://shop"], ["amcast://shop/king/a"],
     ["amcast:///node/a"], ["amcast://shop/node/"]],
)  # fmt: skip
def test_certificates_with_no_or_several_owners_are_refused(uris: list[str]) -> None:
    with pytest.raises(RefusedError):
        Subject.parse(uris)


def test_subject_round_trips_through_its_uri() -> None:
    for name in ("orders/1", "größe/2", "a b/3", "a%2Fb/1", "../../etc/4"):
        subject = Subject("my shop/ä", "node", name)
        assert Subject.parse([subject.uri]) == subject
        assert "/" not in subject.file_stem
        assert ".." not in subject.file_stem.replace("..%2F", "").replace("..-", "") or "/" not in subject.file_stem


def test_keys_never_appear_in_logs_or_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = secured(tmp_path)
    configure_logging("orders/1")
    key = (tmp_path / "certs" / "node-orders-1.key").read_text().splitlines()[1]
    texts = [repr(cluster), repr(cluster.node_transport("orders/1")), str(cluster.security)]
    (tmp_path / "certs" / "node-orders-1.pem").write_text((tmp_path / "certs" / "node-orders-1.key").read_text())
    with pytest.raises(UsageError) as refused:
        cluster.node_transport("orders/1")
    texts += [str(refused.value), *capsys.readouterr()]
    assert not any(key in text for text in texts)


@needs_sockets
def test_port_in_use_is_reported(tmp_path: Path) -> None:
    cluster = secured(tmp_path)

    async def main() -> None:
        with socket.create_server(cluster.addresses[0]), pytest.raises(UsageError, match="cannot listen on"):
            async with replicas(cluster):
                pass

    run(main())


@needs_sockets
def test_renewed_certificates_are_used_after_sighup(tmp_path: Path) -> None:
    cluster = secured(tmp_path)

    def serial(replica: Replica) -> str:
        context = cluster.client_transport("till").secured
        assert context is not None
        with socket.create_connection(cluster.addresses[replica.me]) as raw, context.wrap_socket(raw) as shown:
            certificate = shown.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with replicas(cluster) as running, connect(cluster, client="till") as client:
            before = await loop.run_in_executor(None, serial, running[0])
            certs.make_certificates(cluster, renew=True)
            assert await loop.run_in_executor(None, serial, running[0]) == before
            for replica in running.values():
                reload_configuration(cluster, replica.host)
            assert await loop.run_in_executor(None, serial, running[0]) != before
            await client.multicast({"orders", "stock"}, b"the old connection goes on")
            async with connect(cluster, client="till") as newcomer:
                await newcomer.multicast({"orders", "stock"}, b"and new ones come")
            (tmp_path / "certs" / "node-orders-1.pem").write_text("nonsense")
            reload_configuration(cluster, running[0].host)
            assert log.having("the old certificates and clients stay in use")
            await client.multicast({"orders", "stock"}, b"still")

    with listening() as log:
        run(main())
    assert len(log.having("the certificates and clients were reloaded")) == 2


def test_only_nodes_may_fetch_the_state_of_an_application(tmp_path: Path) -> None:
    """A client with all rights, and the node that it would be fetched by after a restart."""
    made = secured(tmp_path, {"orders": 1, "stock": 1})

    hosted = run_replica(made, "orders/1", lambda delivery: None, take=lambda: b"state", install=lambda *_: None)

    async def main() -> None:
        async with hosted, run_replica(made, "stock/1"):
            assert await hosted.runtime.wait_admitted(10)
            client = RpcClient(made.name, made.addresses, made.limits, made.client_transport("till"))
            with pytest.raises(NoAnswerError, match="client till is not a node; only nodes may fetch"):
                await client.request(0, FetchState(0))
            node = RpcClient(made.name, made.addresses, made.limits, made.node_transport("stock/1"))
            assert await node.request(0, FetchState(0))

    run(main(), timeout_s=60)
