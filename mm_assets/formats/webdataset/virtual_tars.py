"""Virtual tars: made when they are opened, as files of their file systems; and their entries beside samples.

* `virtual_info`, `virtual_file`: what ``paired://`` and ``pdf://`` say of such a tar, and the tar itself.
* `refusal`, `write_unread`, `write_unpaired`: entries for what could not be made a sample of.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

from mm_assets.formats.names import sample_key
from mm_assets.formats.tar.index import TarIndex
from mm_assets.formats.tar.writer import TarWriter
from mm_assets.formats.webdataset.layout import (
    BOOKKEEPING,
    LEFT_OUT,
    REFUSED,
    ROW_EXTRA,
    SAMPLE_ID,
    UNPAIRED,
)
from mm_assets.model.json_codec import dumps
from mm_assets.model.samples import build_source_ref
from mm_assets.storage.files import is_remote, local_path, size_of
from mm_assets.storage.stamps import MISSING, local_stamp, remote_stamps


def virtual_info(path: str, marks: Sequence[str], files: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return what a file system says of a tar that is made of some files.

    Args:
        path: the tar.
        marks: what its content depends on besides the files.
        files: name and location of each.
    """
    named = list(files)
    stamps = remote_stamps([file for _, file in named if is_remote(file)])
    stamps |= {file: local_stamp(local_path(file)) for _, file in named if not is_remote(file)}
    identity = [*marks, *(f"{name}:{stamps[file]}" for name, file in named)]
    return {
        "name": path,
        # Approximate: the tar has other headers, and json of its own. A missing file only fails when the tar
        # is opened.
        "size": sum(size_of(file) for _, file in named if stamps[file] != MISSING),
        "type": "file",
        "ETag": hashlib.sha256("\n".join(identity).encode()).hexdigest()[:32],
    }


def virtual_file(make: Callable[[str], None]) -> IO[bytes]:
    """Return the tar that ``make`` writes at a path, as an open, unlinked temporary file."""
    with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
        target = os.path.join(folder, "made.tar")
        make(target)
        return open(target, "rb")


def refusal(sample_id: str, kind: str, reason: str, ref: str) -> dict[str, Any]:
    """Return the json of a sample that readers refuse and account for.

    Args:
        sample_id: its id.
        kind: class of the fault.
        reason: what is wrong with it.
        ref: locator of the fault.
    """
    return {SAMPLE_ID: sample_id, ROW_EXTRA: {}, BOOKKEEPING: {REFUSED: [kind, reason, ref]}}


def write_unread(tar: TarWriter, name: str, index: TarIndex) -> None:
    """Write what was not read of an original tar, which locators call ``name``.

    That is a refused sample for each damaged range, and an entry for each member that was left out.
    """
    for number, member in enumerate(index.left_out):
        report = dumps({"where": f"{name}: {member}"})
        tar.write_group([(f"{sample_key(f'{number}/{name}')}.{LEFT_OUT}", report.encode())])
    for damaged_range in index.damaged_ranges:
        place = f"{name}: bytes {damaged_range.start} to {damaged_range.end}"
        ref = build_source_ref(name, None, damaged_range.start, damaged_range.end - damaged_range.start)
        payload = refusal(place, damaged_range.damage.kind, str(damaged_range.damage), ref)
        tar.write_group([(f"{sample_key(place)}.json", dumps(payload).encode())])


def write_unpaired(tar: TarWriter, key: str, where: str, ref: str, reason: str | None) -> None:
    """Write an entry that stands for an original member that belongs to no sample.

    Args:
        tar: the merged tar.
        key: a text that no other such member has.
        where: tar and name of the member, for messages.
        ref: its locator.
        reason: why it is no part of a sample, if there is more to say than that.
    """
    report = {"where": where, "ref": ref, "reason": reason}
    tar.write_group([(f"{sample_key(key)}.{UNPAIRED}", dumps(report).encode())])
