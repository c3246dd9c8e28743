"""The flag ``--html FILE`` of commands that write a page."""

from __future__ import annotations

import sys
from pathlib import Path

from mm_assets.terminal import printable


def refuse_other_than_file(target: str) -> None:
    """Raise an error for a folder, and for a device: the page replaces what has its name."""
    from mm_assets.formats.storage import is_remote, local_path

    if target == "-":
        return
    path = Path(local_path(target))
    if target.endswith("/") or (not is_remote(target) and path.is_dir()):
        raise IsADirectoryError(f"{target}: a folder, not a file to write")
    if not is_remote(target) and path.exists() and not path.is_file():
        raise ValueError(f"{target}: no regular file; - is standard output")


def write_page(target: str, page: str) -> None:
    """Write a page to a file, and print its name; or to standard output."""
    from mm_assets.formats.storage import absolute, publish_bytes

    if target == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(page.encode())
        return
    publish_bytes(absolute(target), page.encode())
    print(printable(target))
