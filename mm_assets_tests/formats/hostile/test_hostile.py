"""Hostile shards: each comes out whole, as error rows, or in quarantine, exactly as its case says; its
neighbours always whole.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.filters.readable import ReadableImages
from mm_assets.formats.registry import Conversion
from mm_assets.formats.reports import PartitionReport
from mm_assets.interleaved import INTERLEAVED_SCHEMA, InterleavedParquetWriter, InterleavedWebdatasetReader
from mm_assets.model.errors import DENIED, FAULTS, fault_of
from mm_assets_tests.formats.hostile.cases import CASES
from mm_assets_tests.formats.hostile.judge import Judge
from mm_assets_tests.formats.hostile.outcomes import (
    PNG,
    Case,
    Damage,
    Lost,
    Rejected,
    Sample,
    neighbour,
    pictured,
)
from mm_assets_tests.formats.hostile.shards import document, tar

BATCH_BYTES = {"drop_sample": 1 << 20, "warn": 1}  # several samples at once, and each alone


def ingest(path: Path, policy: str, **options: Any) -> tuple[PartitionReport, pa.Table]:
    """One shard read tolerantly, its images looked at, written to Parquet; the report, and what pyarrow alone
    finds in the file.
    """
    folder = str(path.parent)
    reader = InterleavedWebdatasetReader(
        str(path), quarantine_errors=True, relative_to=folder, max_batch_bytes=BATCH_BYTES[policy], **options
    )
    (partition,) = reader.partitions()
    writer = InterleavedParquetWriter(str(path.parent / "out"), on_materialize_error=policy, roots=[folder])
    report = Conversion(reader, partition, writer, (ReadableImages(),)).run()
    assert report.uri is not None
    return report, pq.ParquetFile(report.uri).read()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("policy", ["drop_sample", "warn"])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, policy: str) -> None:
    shard = tmp_path / case.file_name
    shard.write_bytes(case.shard(case.entries))
    for name, value in case.settings.items():
        monkeypatch.setattr(name, value)
    report, table = ingest(shard, policy, **case.options)

    samples = [outcome for outcome in case.all_outcomes if isinstance(outcome, Sample)]
    faulty = [sample for sample in samples if sample.faults]
    dropped = faulty if policy == "drop_sample" else []
    judge = Judge(case, shard)
    judge.rows(table, [sample for sample in samples if sample not in dropped])
    judge.losses(report.losses, dropped)
    errors = [
        (error.sample_id, error.position, error.modality, fault_of(error.message)) for error in report.errors
    ]
    assert errors == [
        (s.sample_id, at, "image", fault_of(words)) for s in faulty for at, words in sorted(s.faults.items())
    ]
    assert report.rows == table.num_rows
    assert report.items == report.rows + sum(loss.is_item for loss in report.losses)
    lost = sum(
        len(outcome.places) if isinstance(outcome, Rejected) else isinstance(outcome, Lost)
        for outcome in case.outcomes
    )
    assert report.items == sum(len(sample.places) for sample in samples) + lost
    notes = dict(report.notes.get(str(shard), {}))
    judge.unreferenced(notes.pop("unreferenced_losses", []))
    nbytes, _ = notes.pop("nbytes"), notes.pop("of_others", None)
    notes.pop("content_columns", None)
    assert nbytes == len(shard.read_bytes()) or shard.read_bytes().startswith(b"\x1f\x8b")
    assert notes == case.notes
    assert report.notes.keys() <= {str(shard)}


MIDDLE = [*pictured(PNG), document("text", f=1)]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as they are, however long the file was."""
    return [
        {name: value for name, value in row.items() if name in INTERLEAVED_SCHEMA.names}
        for row in table.to_pylist()
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_tar_cut_anywhere_keeps_what_is_before_the_cut(tmp_path: Path) -> None:
    shard = tmp_path / "shard.tar"
    entries = [*neighbour("before"), *MIDDLE, *neighbour("after")]
    whole = tar(entries)
    shard.write_bytes(whole)
    sound = rows_of(ingest(shard, "drop_sample")[1])
    ends: dict[str, int] = {}  # by sample, where the last member it needs ends; padding is no part of it
    at = 0
    for entry in entries:
        ends[str(entry.name).split(".")[0]] = at + 512 + len(entry.data)
        at += len(entry.blocks)
    sizes = sorted(
        {min(max(at + by, 0), len(whole) - 1) for at in range(0, len(whole), 512) for by in (-1, 0, 1)}
    )
    for size in sizes:
        shard.write_bytes(whole[:size])
        report, table = ingest(shard, "drop_sample")
        kept = [sample for sample, end in ends.items() if end <= size]
        assert rows_of(table) == [row for row in sound if row["sample_id"] in kept], size
        (cut,) = [loss for loss in report.losses if not loss.is_item]
        assert cut.kind == "truncated_tar"
        place = json.loads(cut.source_ref or "")
        assert place["byte_offset"] + place["byte_size"] == size
        assert report.items == report.rows + sum(loss.is_item for loss in report.losses)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["shard.tar", "shard.tar.gz"])
def test_a_flipped_bit_never_costs_what_it_does_not_hit_in_silence(tmp_path: Path, name: str) -> None:
    """Bits of the samples in the middle; of a packed tar all, which its checksum covers unless its end is
    lost too.
    """
    shard = tmp_path / name
    plain = tar([*neighbour("before"), *MIDDLE, *neighbour("after")])
    is_packed = name.endswith("gz")
    data = gzip.compress(plain) if is_packed else plain
    shard.write_bytes(data)
    sound = rows_of(ingest(shard, "drop_sample")[1])
    first = sum(len(entry.blocks) for entry in neighbour("before"))
    hit = range(len(data)) if is_packed else range(first, first + sum(len(entry.blocks) for entry in MIDDLE))
    pick = random.Random(3)
    seen: Counter[str] = Counter()
    for _ in range(80):
        at, bit = pick.choice(hit), 1 << pick.randrange(8)
        shard.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        report, table = ingest(shard, "drop_sample")
        seen.update(loss.kind for loss in report.losses if loss.is_cause)
        assert report.items == report.rows + sum(loss.is_item for loss in report.losses), at
        if any(loss.kind == "truncated_tar" for loss in report.losses):
            continue
        rows = rows_of(table)
        is_damaged = any(loss.kind == "damaged_tar" for loss in report.losses)
        if is_packed:
            assert rows == ([] if is_damaged else sound), at
        else:
            assert [row for row in rows if row["sample_id"] == "before"] == sound[:3], at
            assert [row for row in rows if row["sample_id"] == "after"] == sound[-3:], at
    assert seen["damaged_tar"] >= 5


def test_the_cases_are_many_and_their_names_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 70
    causes = {o.kind for case in CASES for o in case.outcomes if isinstance(o, Lost | Damage | Rejected)}
    causes |= {
        fault_of(words)
        for case in CASES
        for o in case.outcomes
        if isinstance(o, Sample)
        for words in o.faults.values()
    }
    assert causes == set(FAULTS) - {"incomplete_sample", *DENIED}, (
        "each class of fault is the cause of some case"
    )
