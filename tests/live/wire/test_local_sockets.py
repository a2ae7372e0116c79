"""Unix sockets beside loopback addresses."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from amcast.kernel.topology import Topology
from amcast.live.wire.listener import format_address
from amcast.live.wire.local_sockets import PREFIX, connect_locally, listen_locally
from tests.live.cluster import cluster, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets exist on Linux only")

PORT = 70_000 + os.getpid()
"""No TCP port: the names of these tests meet no listener."""


def test_dialler_finds_the_listener_of_a_loopback_address() -> None:
    listener = listen_locally("127.0.0.1", PORT)
    assert listener is not None
    with listener:
        end = connect_locally("127.0.0.1", PORT)
        assert end is not None
        accepted, address = listener.accept()
        assert format_address(end.getpeername()) == f"127.0.0.1:{PORT}"
        assert format_address(address, accepted.getsockname()) == "127.0.0.1:local"
        end.close()
        accepted.close()
    assert connect_locally("127.0.0.1", PORT) is None, "nobody listens any more"


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.example", "0.0.0.0"])
def test_other_addresses_have_no_name(host: str) -> None:
    assert listen_locally(host, PORT) is None
    assert connect_locally(host, PORT) is None


def test_taken_name_is_left_to_its_owner() -> None:
    listener = listen_locally("127.0.0.2", PORT)
    assert listener is not None
    with listener:
        assert listen_locally("127.0.0.2", PORT) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a listener of another user")
def test_listener_of_another_user_is_not_trusted() -> None:
    name = PREFIX + f"127.0.0.3:{PORT}".encode()
    code = (
        "import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
        f"s.bind({name!r}); s.listen(); print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert connect_locally("127.0.0.3", PORT) is None
        other.communicate("\n")


@pytest.mark.live
def test_cluster_on_loopback_addresses_uses_unix_sockets() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(1, 2)) as made, made.client() as client:
            await client.multicast({0}, b"x")
            families = set()
            for host in made.hosts.values():
                for link in host.network.links.values():
                    connection = link.connection
                    assert connection is not None
                    families.add(connection._transport.get_extra_info("socket").family)  # type: ignore[attr-defined]
            assert families == {socket.AF_UNIX}
            await asyncio.sleep(0)

    run(main())
