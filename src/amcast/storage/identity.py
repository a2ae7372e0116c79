"""The identity of a data folder: a random number, its incarnations, and what it remembers of the folders of others.

It is kept in two checksummed files with the same content, so that one rotten sector does not cost a node its name. Both
are written atomically, at every start and whenever something changes that must not be forgotten.
"""

from typing import Final

import msgspec

from amcast.kernel.folder import KnownFolder, Starts
from amcast.storage.atomic_files import decode_checked, encode_checked, write_atomically
from amcast.storage.errors import DamagedLogError
from amcast.storage.files import Files, read_file

FILES: Final = ("identity", "identity.copy")


class Identity(msgspec.Struct, frozen=True):
    """The content of the identity files."""

    folder: int
    incarnation: int
    """The last incarnation that began; -1 before the first."""
    version: int = 0
    """How often the files were written; the higher of two copies counts."""
    first: int = 1
    """The number of the first record of the log; larger after a log was discarded."""
    has_log: bool = False
    """A log was created: if there is none, it is lost."""
    records: int = 0
    """The number of the last record that was durable when this was written: a log that ends before it lacks records."""
    is_discarding: bool = False
    """The log is being discarded: every segment that is still there is to be put aside."""
    admitted: bool = False
    doubt: str = ""
    """Why the folder is doubtful, other than by damage: others remember more of it than it has."""
    is_lost: bool = False
    """The folder was prepared in place of a lost one (`amcast replace`), or its records were put aside."""
    accepts_loss: bool = False
    """An operator lets the node take part with the folder as it is, once."""
    peers: tuple[KnownFolder, ...] = ()
    divergence: str = ""
    """How the node diverged from its group; it does not take part again."""
    starts: Starts = ()
    """The last starts since the log began."""


def read_identity(files: Files) -> Identity | None:
    """Reads the identity of a folder; None if it has none. One of two copies is enough."""
    copies = [data for name in FILES if (data := read_file(files, name)) is not None]
    valid = [identity for data in copies if (identity := _decode(data)) is not None]
    if copies and not valid:
        raise DamagedLogError(
            f"{files.path}: both identity files are damaged, so nothing in the folder can be trusted; expected one that"
            f" is whole. Empty the folder, and admit the node anew with `amcast replace`"
        )
    return max(valid, key=lambda identity: identity.version, default=None)


def write_identity(files: Files, identity: Identity) -> Identity:
    """Makes an identity durable; returns it with its new version."""
    identity = msgspec.structs.replace(identity, version=identity.version + 1)
    data = encode_checked(msgspec.json.encode(identity))
    for name in FILES:
        write_atomically(files, name, data)
    return identity


def _decode(data: bytes) -> Identity | None:
    content = decode_checked(data)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=Identity)
    except msgspec.MsgspecError:
        return None
