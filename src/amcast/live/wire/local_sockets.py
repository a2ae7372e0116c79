"""Unix sockets between processes of one machine, beside TCP on the loopback address.

A listener on a loopback address also listens on an abstract Unix socket that is named after the address, and who dials
such an address tries that name first: a frame costs a third of what it costs by TCP. Everything else is the same: the
frames, TLS, the permissions, and what a lost connection means. Whether a peer is down is asked of its TCP address.

An abstract name belongs to nobody, so another user of the machine could take it before the listener does. The dialler
therefore compares the user of the listener with its own, and uses TCP if they differ. A network namespace, a proxy and
another system than Linux have no such names, and use TCP as well.
"""

import os
import socket
import struct
import sys
from ipaddress import ip_address
from typing import Final

PREFIX: Final = b"\0amcast/"
BACKLOG: Final = 1024
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group of the other end (`SO_PEERCRED`)."""


def listen_locally(host: str, port: int) -> socket.socket | None:
    """Listens on the name of an address; None if the address is not local, or its name is taken."""
    name = _name_of(host, port)
    if name is None:
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(name)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def connect_locally(host: str, port: int) -> socket.socket | None:
    """Connects to the name of an address; None if the address is not local, or nobody of this user listens there."""
    name = _name_of(host, port)
    if name is None:
        return None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.setblocking(False)
        end.connect(name)
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] in (os.getuid(), 0):
            return end
    except OSError:
        pass
    end.close()
    return None


def format_local_name(name: bytes) -> str:
    """Formats the name of a listener as the address that it stands for; an unnamed end has none."""
    return name.removeprefix(PREFIX).decode() if name.startswith(PREFIX) else ""


def _name_of(host: str, port: int) -> bytes | None:
    if sys.platform != "linux" or not _is_loopback(host):
        return None
    return PREFIX + f"{host}:{port}".encode()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
