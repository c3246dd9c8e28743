"""Messages between a process that reads PDFs and its parent: a JSON object, and bytes behind it.

The parent opens a document (``size``, and its bytes). The child says page by page that it is alive
(``page``), then what the document is (``document``). The parent asks for the items in reading order
(``read``), for the pictures of given boxes (``pictures``), or for nothing (``stop``). Each item is a message
(``content``), then comes ``end``. Instead of any answer the child may refuse the document (``refused``), or
say that it gets no more memory (``memory``).

The child has read what strangers made: the parent trusts none of its messages (`answers`).
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

HEAD = struct.Struct(">II")  # bytes of the JSON, bytes behind it
MAX_HEADER = 1 << 16
MAX_DESCRIPTION = 64 << 20  # bytes of JSON: title, author and the sizes of all pages
MAX_WORDS = 1 << 16  # bytes of a reason or a fault

Header = dict[str, Any]


def packed(header: Header, size: int) -> bytes:
    """Return the beginning of a message that ``size`` bytes follow."""
    text = json.dumps(header).encode()
    return HEAD.pack(len(text), size) + text


class ChildEnd:
    """The child's end of the connection."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send a message, at the latest with the next `flush`."""
        self._file.write(packed(header, len(body)))
        self._file.write(body)

    def flush(self) -> None:
        """Send what waits."""
        self._file.flush()

    def receive(self) -> tuple[Header, int] | None:
        """Return the next message, and how many bytes follow it; None if the parent is gone."""
        self.flush()
        head = self._file.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        length, size = HEAD.unpack(head)
        return json.loads(self._file.read(length)), size

    def body(self, size: int) -> bytes:
        """Return the bytes that follow a message."""
        return self._file.read(size)
