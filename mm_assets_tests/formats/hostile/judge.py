"""Compare what became of a case with what must become of it."""

from __future__ import annotations

import json
import math
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.interleaved import INTERLEAVED_SCHEMA
from mm_assets.model.errors import FAULTS, fault_of
from mm_assets.model.losses import Loss
from mm_assets_tests.formats.hostile.outcomes import JSON, Case, Damage, Frame, Lost, Rejected, Sample
from mm_assets_tests.formats.images.tiff_tools import assert_same, read_tiff

BY_SUFFIX = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "bmp": "image/bmp",
    "tif": "image/tiff",
    "tiff": "image/tiff",
}


class Judge:
    """One case after its ingest: compares what was put in with what came out."""

    def __init__(self, case: Case, shard: Path) -> None:
        self.case = case
        self.shard = shard
        self.plain = unpacked(shard.read_bytes())
        self.put_in: dict[str, list[bytes]] = {}
        for entry in case.entries:
            if entry.name is not None:
                self.put_in.setdefault(entry.name, []).append(entry.data)

    def rows(self, table: pa.Table, samples: list[Sample]) -> None:
        """Every row of these samples in their order, byte for byte, in the columns of the case."""
        self.columns(table.schema)
        rows = table.to_pylist()
        assert [row["sample_id"] for row in rows] == [
            sample.sample_id for sample in samples for _ in sample.places
        ]
        for sample in samples:
            for position, modality in sample.places:
                row = rows.pop(0)
                assert (row["position"], row["modality"]) == (position, modality)
                self.row(row, sample)
        assert rows == []

    def columns(self, schema: pa.Schema) -> None:
        assert [schema.field(n) for n in range(8)] == list(INTERLEAVED_SCHEMA)
        found = {field.name: field for field in list(schema)[8:]}
        keeps_more = any(
            isinstance(o, Sample) and (o.said is not None or o.tokens or o.values) for o in self.case.outcomes
        )
        expected = {**self.case.columns, **({"_source": JSON} if keeps_more else {})}
        assert found.keys() == expected.keys()
        for name, declared in expected.items():
            is_json = declared is JSON
            assert found[name].type == (pa.string() if is_json else declared), name
            assert ((found[name].metadata or {}).get(b"mm_assets:encoding") == b"json") is is_json, name

    def row(self, row: dict[str, Any], sample: Sample) -> None:
        position, modality = row["position"], row["modality"]
        fault = sample.faults.get(position) if modality == "image" else None
        said, extras = None, sample.item_extras.get((modality, position), {})
        assert row["text_content"] == (sample.texts[position] if modality == "text" else None)
        if modality == "metadata":
            said, extras = sample.said, sample.extras
            assert row["content_type"] == "application/json"
        elif modality == "text":
            said = {"value": sample.values[position]} if position in sample.values else None
            assert row["content_type"] == "text/plain"
        else:
            said = {"token": sample.tokens[position]} if position in sample.tokens else None
            self.image(row, sample)
        assert (row["materialize_error"] or "").startswith(fault or "")
        assert (row["materialize_error"] is None) is (fault is None), row["materialize_error"]
        self.place(row["source_ref"], sample, position, modality)
        values = {**extras, **({} if said is None else {"_source": said})}
        for name in {*row} - {*INTERLEAVED_SCHEMA.names}:
            is_text = name == "_source" or self.case.columns[name] is JSON
            found = json.loads(row[name]) if is_text and row[name] is not None else row[name]
            assert equal(found, values.get(name)), name

    def image(self, row: dict[str, Any], sample: Sample) -> None:
        position, data = row["position"], row["binary_content"]
        ref = json.loads(row["source_ref"]) if sample.refs is None else {}
        suffix = str(ref.get("member")).rpartition(".")[2].lower()
        assert row["content_type"] == sample.types.get(position, BY_SUFFIX.get(suffix))
        expected = sample.images[position]
        if isinstance(expected, Frame):
            assert ref["frame_index"] == expected.number
            assert_same(read_tiff(expected.tiff)[expected.number], only(read_tiff(data)))
        else:
            assert data == expected

    def place(self, ref: str | None, sample: Sample, position: int | None, modality: str | None) -> None:
        """The locator of a row or of its loss: of the bytes that were put in, or as the json itself states
        it.
        """
        if sample.refs is not None:
            assert ref == (sample.refs.get(position or 0) if modality == "image" else None)
        else:
            self.locator(ref, is_known=modality != "image" or position not in sample.unlocated)

    def locator(self, text: str | None, is_known: bool = True, data: bytes | None = None) -> None:
        """The locator names a member and, where ``is_known``, the very bytes that were put in under this
        name.
        """
        ref = json.loads(text or "null")
        assert ref["path"] == self.shard.name
        if is_known:
            found = self.plain[ref["byte_offset"] : ref["byte_offset"] + ref["byte_size"]]
            assert found in ([data] if data is not None else self.put_in[ref["member"]])
        else:
            assert (ref["byte_offset"], ref["byte_size"]) == (None, None)

    def losses(self, found: tuple[Loss, ...], samples: list[Sample]) -> None:
        """Exactly the losses of the case: those of its bad samples, of its damage, and of ``samples``,
        dropped whole.
        """
        assert {loss.outcome for loss in found} <= {"quarantined"}
        assert {loss.kind for loss in found} <= set(FAULTS)
        assert all(loss.reason and loss.score is None for loss in found)
        assert not any(str(self.shard.parent) in str(loss) for loss in found), (
            "paths of this machine are nobody's business"
        )
        expected: Counter[tuple[Any, ...]] = Counter()
        for outcome in self.case.all_outcomes:
            expected.update(self.places_lost(outcome, samples))
        keys = [(loss.sample_id, loss.position, loss.modality, loss.kind, loss.is_cause) for loss in found]
        assert Counter(keys) == expected
        for outcome in self.case.all_outcomes:
            if isinstance(outcome, Lost):
                loss = next(
                    loss for loss in found if (loss.sample_id, loss.kind) == (outcome.sample_id, outcome.kind)
                )
                assert outcome.words in loss.reason
                assert json.loads(loss.source_ref or "")["member"] == outcome.member
                if outcome.has_bytes:
                    self.locator(loss.source_ref, data=outcome.data)
                else:
                    self.header(loss.source_ref)
            elif isinstance(outcome, Damage):
                self.damage([loss for loss in found if loss.kind == outcome.kind], outcome)
            elif isinstance(outcome, Rejected):
                self.rejected(
                    [
                        loss
                        for loss in found
                        if (loss.sample_id, loss.kind) == (outcome.sample_id, outcome.kind)
                    ],
                    outcome,
                )
            elif outcome in samples:
                self.sample(
                    [
                        loss
                        for loss in found
                        if loss.sample_id == outcome.sample_id and loss.kind != "duplicate_id"
                    ],
                    outcome,
                )

    def places_lost(self, outcome: Any, samples: list[Sample]) -> list[tuple[Any, ...]]:
        """(sample, position, modality, kind, is cause) of each loss of an outcome."""
        if isinstance(outcome, Lost):
            return [(outcome.sample_id, -1, "metadata", outcome.kind, True)]
        if isinstance(outcome, Damage):
            return [(None, None, None, outcome.kind, True)]
        if isinstance(outcome, Rejected):
            return [
                (outcome.sample_id, position, kind, outcome.kind, position == -1)
                for position, kind in outcome.places
            ]
        if outcome not in samples:
            return []
        places = []
        for position, kind in outcome.places:
            words = outcome.faults.get(position) if kind == "image" else None
            fault = "incomplete_sample" if words is None else fault_of(words)
            places.append((outcome.sample_id, position, kind, fault, words is not None))
        return places

    def header(self, text: str | None) -> None:
        """The locator of a member without bytes is that of its first header, be it an extended one."""
        ref = json.loads(text or "null")
        assert (ref["path"], ref["byte_size"]) == (self.shard.name, None)
        header = tarfile.TarInfo.frombuf(self.plain[ref["byte_offset"] :][:512], "utf-8", "strict")
        assert header.name == ref["member"] or header.type == b"x"

    def unreferenced(self, found: list[Loss]) -> None:
        """Each member, file or not, and each frame that the notes of the case count is in the ledger, in
        their order.
        """
        assert {(loss.outcome, loss.is_item, loss.sample_id) for loss in found} <= {
            ("unreferenced", False, None)
        }
        refs = [json.loads(loss.source_ref or "") for loss in found]
        assert {ref["path"] for ref in refs} <= {self.shard.name}
        members = [
            ref["member"] for ref, loss in zip(refs, found, strict=True) if loss.kind == "unreferenced_member"
        ]
        assert members == [
            name
            for kind in ("unreferenced_members", "skipped_members")
            for name in self.case.notes.get(kind, [])
        ]
        frames: dict[str, list[int]] = {}
        for ref, loss in zip(refs, found, strict=True):
            if loss.kind == "unreferenced_frame":
                frames.setdefault(ref["member"], []).append(ref["frame_index"])
                assert (
                    self.plain[ref["byte_offset"] : ref["byte_offset"] + ref["byte_size"]]
                    in self.put_in[ref["member"]]
                )
        counted = [f"{name}: {len(numbers)} of {numbers[-1] + 1} frames" for name, numbers in frames.items()]
        assert counted == self.case.notes.get("unreferenced_frames", [])

    def damage(self, losses: list[Loss], outcome: Damage) -> None:
        (loss,) = [
            loss
            for loss in losses
            if json.loads(loss.source_ref or "")["byte_offset"] == outcome.offset and not loss.is_item
        ]
        assert outcome.words in loss.reason
        end = len(self.plain) if outcome.end is None else outcome.end
        assert json.loads(loss.source_ref or "") == {
            "path": self.shard.name,
            "member": None,
            "byte_offset": outcome.offset,
            "byte_size": end - outcome.offset,
        }

    def rejected(self, losses: list[Loss], outcome: Rejected) -> None:
        (cause,) = [
            loss
            for loss in losses
            if loss.position == -1 and json.loads(loss.source_ref or "")["member"] == outcome.member
        ]
        assert outcome.words in cause.reason
        self.locator(cause.source_ref)

    def sample(self, losses: list[Loss], sample: Sample) -> None:
        for loss in losses:
            self.place(loss.source_ref, sample, loss.position, loss.modality)
            if loss.is_cause:
                assert loss.reason.startswith(sample.faults[loss.position or 0])
            else:
                assert loss.reason.startswith(f"its sample has an error at position {min(sample.faults)}: ")


def unpacked(data: bytes) -> bytes:
    """A tar as it lies, or what can be unpacked of it."""
    plain = b""
    while data.startswith(b"\x1f\x8b\x08") and len(plain) < 1 << 20:
        inflator = zlib.decompressobj(31)
        try:
            plain += inflator.decompress(data, 1 << 20)
        except zlib.error:
            break
        data = inflator.unused_data
        if not inflator.eof:
            return plain
    return plain or data


def only(items: list[Any]) -> Any:
    (item,) = items
    return item


def equal(one: Any, other: Any) -> bool:
    """Equal values of equal types; NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    return type(one) is type(other) and bool(one == other)
