"""Entries of tars that are made when they are opened, for what could not be made a sample of."""

from __future__ import annotations

from typing import Any

from mm_assets.formats.keys import sample_key
from mm_assets.formats.tar.index import TarIndex
from mm_assets.formats.tar.writer import TarWriter
from mm_assets.formats.webdataset.layout import BOOKKEEPING, LEFT_OUT, REFUSED, ROW_EXTRA, SAMPLE_ID, UNPAIRED
from mm_assets.interleaved.json_values import dumps
from mm_assets.interleaved.source_ref import build_source_ref


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
