"""Small files that are written atomically: after a crash the old or the new content is there, never a part.

Files that a node must not misread carry a checksum (`encode_checked`): one flipped bit in a number gives another
number, which no parser notices.
"""

from amcast.kernel.checksum import crc32
from amcast.storage.files import Files, write_all


def write_atomically(files: Files, name: str, data: bytes) -> None:
    """Creates or replaces a file; it is durable when this returns."""
    temporary = f".{name}.new"
    files.remove(temporary)
    file = files.create(temporary)
    try:
        write_all(file, data, 0)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, name)
    files.sync()


def encode_checked(content: bytes) -> bytes:
    """Adds a line with a checksum to one line of content."""
    return b"%s\n%08x\n" % (content, crc32(content))


def decode_checked(data: bytes) -> bytes | None:
    """The content of a checked file; None if it is damaged."""
    content = data[:-10]
    return content if encode_checked(content) == data else None
