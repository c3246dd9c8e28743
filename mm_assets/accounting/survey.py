"""Survey of a raw shard, all its files together: samples, faults, and column types. No image is read.

* `survey_shard` makes a `ShardSurvey`; `findings` are the problems in it, for an asset check.
* `ShardColumns` and `RequiredType` are the types that the passthrough columns of the shard require. The
  schema contract (`mm_assets.accounting.contract`) brings those of all shards together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.erasures import DenyList, alias_of
from mm_assets.formats.batching import SampleIds
from mm_assets.formats.jsonl import samples_of
from mm_assets.formats.names import is_parquet
from mm_assets.formats.parquet.reader_writer import survey_parquet
from mm_assets.formats.partitions import Partition, id_prefix, ref_path
from mm_assets.formats.reader import FileSurvey, SurveyedSample
from mm_assets.formats.reports import ContentColumns, content_columns, merged_content, untaken
from mm_assets.formats.tar.scan import residue_bytes
from mm_assets.formats.webdataset import RawLayout, stated_fields
from mm_assets.formats.webdataset.samples import survey_tar
from mm_assets.model.errors import DAMAGED_TAR, DENIED, DUPLICATE_ID, ERASED, TRUNCATED_TAR
from mm_assets.model.json_codec import FieldTally, is_json, json_field
from mm_assets.model.losses import Loss
from mm_assets.model.samples import build_source_ref, parse_source_ref
from mm_assets.model.schema import (
    METADATA_POSITION,
    RESERVED_COLUMNS,
    canonical_schema,
    unify_fields,
    unify_schemas,
)


@dataclass(frozen=True)
class RequiredType:
    """The type that some values of a column require.

    ``is_exact``: all integers among them are exact as float64.
    """

    field: pa.Field
    is_exact: bool = True

    def join(self, other: RequiredType) -> RequiredType:
        """Return the type that the values of both require.

        It is that of `unify_fields`, or JSON text where integers would not be exact.
        """
        joined = unify_fields(self.field, other.field)
        if pa.types.is_floating(joined.type) and not all(
            n.is_exact for n in (self, other) if pa.types.is_integer(n.field.type)
        ):
            joined = json_field(joined.name)
        return RequiredType(
            joined.with_nullable(self.field.nullable or other.field.nullable),
            self.is_exact and other.is_exact,
        )

    def holds(self, other: RequiredType) -> bool:
        """Return whether values that require ``other`` can be written in this type without loss."""
        return is_same_type(self.join(other).field, self.field)

    def clashes(self, other: RequiredType) -> bool:
        """Return whether only JSON text holds the values of both."""
        return not pa.types.is_null(self.field.type) and is_json(self.join(other).field)

    def described(self) -> str:
        """Return the type for messages, and what keeps it from becoming float64."""
        beyond = pa.types.is_integer(self.field.type) and not self.is_exact
        return type_name(self.field) + (" beyond 2^53" if beyond else "")


@dataclass(frozen=True)
class ShardColumns:
    """The passthrough columns of one shard.

    Attributes:
        tallies: kinds of values of the samples that declare no types.
        declared: types that the other samples declare.
        declared_ints: ranges of the integers in declared 64-bit columns; without them such integers count as
            exact.
    """

    tallies: Mapping[str, FieldTally] = field(default_factory=dict)
    declared: pa.Schema = field(default_factory=lambda: pa.schema([]))
    declared_ints: Mapping[str, FieldTally] = field(default_factory=dict)

    def rounded(self) -> ShardColumns:
        """Return columns that require the same types, and tell nothing else of the values."""
        return ShardColumns(
            {name: tally.rounded() for name, tally in self.tallies.items()},
            self.declared,
            {name: tally.rounded() for name, tally in self.declared_ints.items()},
        )

    def required_types(self) -> dict[str, RequiredType]:
        """Return the type that each column requires."""
        found = {}
        for column in passthrough(self.declared):
            ints = self.declared_ints.get(column.name, FieldTally())
            is_lossy = pa.types.is_floating(column.type) and not ints.ints_fit_float
            found[column.name] = RequiredType(
                json_field(column.name) if is_lossy else column, ints.ints_fit_float
            )
        for name, tally in self.tallies.items():
            required_type = RequiredType(tally.field(name), tally.ints_fit_float)
            found[name] = found[name].join(required_type) if name in found else required_type
        return found


def passthrough(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of our outputs for data of ``schema``, without the reserved ones."""
    return [f for f in canonical_schema(schema) if f.name not in RESERVED_COLUMNS]


def type_name(column: pa.Field) -> str:
    """Return a column's type for display."""
    return "json" if is_json(column) else str(column.type)


def is_same_type(one: pa.Field, other: pa.Field) -> bool:
    """Return whether two columns hold the same values in the same form: text and JSON text differ."""
    return one.type == other.type and is_json(one) == is_json(other)


T = TypeVar("T")

SAMPLES_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("member", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("byte_offset", pa.int64()),
        pa.field("byte_size", pa.int64()),
        pa.field("items", pa.int32(), nullable=False),
        pa.field("images", pa.int32(), nullable=False),
    ]
)

_REVISION = 5  # of the survey's rules and content: older surveys are made again
_KEPT = 1000  # entries of each list: a shard with a million faults is as bad as one with a thousand
_SHOWN = 20
_PAIR_ITEMS = 3  # metadata, text, image
DAMAGE = (DAMAGED_TAR, TRUNCATED_TAR)  # kinds of damaged ranges, which hold an unknown number of samples


@dataclass(frozen=True)
class Excerpt(Generic[T]):
    """The ``first`` entries of a list, and the ``count`` of all."""

    first: tuple[T, ...] = ()
    count: int = 0

    @classmethod
    def of(cls, entries: Sequence[T]) -> Excerpt[T]:
        """Return the excerpt of a list."""
        return cls(tuple(entries[:_KEPT]), len(entries))


@dataclass(frozen=True)
class ShardSurvey:
    """Survey of a raw shard in one ``version``, as read with one ``layout`` (`layout_digest`).

    ``samples`` are the readable ones in archive order, in `SAMPLES_SCHEMA`. ``losses`` are the others, one
    entry per sample, and damaged ranges, by kind of fault. All other attributes are those of `FileSurvey`.
    """

    version: str
    layout: str
    samples: pa.Table = field(default_factory=SAMPLES_SCHEMA.empty_table)
    losses: Mapping[str, Excerpt[Loss]] = field(default_factory=dict)
    unresolved: Excerpt[tuple[str, int, str]] = field(default_factory=Excerpt)
    frame_counts: Excerpt[tuple[str, int, int]] = field(default_factory=Excerpt)
    unreferenced: Excerpt[str] = field(default_factory=Excerpt)
    skipped: Excerpt[str] = field(default_factory=Excerpt)
    columns: ShardColumns = field(default_factory=ShardColumns)
    members: int = 0
    nbytes: int = 0
    # None, as the attributes behind it: earlier code made the survey.
    content: ContentColumns | None = None
    has_pairs: bool | None = None
    left_out: Excerpt[str] | None = None
    documents: str | None = None  # names of the layouts of its files' documents

    def is_of(self, version: str, layout: str) -> bool:
        """Return whether this is what a survey of this version and layout would find now."""
        # Pairs were not told apart once, and their images have moved.
        is_outdated = (
            (self.has_pairs is None and self._may_have_pairs)
            or (self.left_out is None and self._may_have_residue)
            or (self.documents is None and bool(self.untaken))  # of fewer layouts
        )
        return (self.version, self.layout) == (version, layout) and not is_outdated

    @property
    def _may_have_residue(self) -> bool:
        losses = [loss for of_kind in self.losses.values() for loss in of_kind.first]
        lost = [parse_source_ref(loss.source_ref)["member"] or "" for loss in losses]
        names = [name.rpartition(": ")[2] for name in (*lost, *self.unreferenced.first)]
        return any(residue_bytes(name) for name in names)

    @property
    def _may_have_pairs(self) -> bool:
        """True if no sample has more items than an image-text pair, in a Parquet file."""
        if not self.samples.num_rows or not is_parquet(self.samples.column("source")[0].as_py()):
            return False
        most = [pc.max(self.samples.column(name)).as_py() for name in ("items", "images")]
        return most[0] <= _PAIR_ITEMS and most[1] == 1

    @property
    def untaken(self) -> ContentColumns:
        """Columns that look like texts, or images, if no sample has any (`untaken`)."""
        if not self.samples.num_rows:
            return {}
        columns = self.content
        if columns is None:
            fields = [tally.field(name) for name, tally in self.columns.tallies.items()]
            # A tar that declares columns is one of ours, of PDFs, for example: none of them is content.
            declared = self.columns.declared if is_parquet(self.samples.column("source")[0].as_py()) else ()
            columns = content_columns([*fields, *declared], {})
        items, images = (pc.sum(self.samples.column(name)).as_py() for name in ("items", "images"))
        return untaken(columns, items - images - self.samples.num_rows, images)

    @property
    def sample_ids(self) -> pa.ChunkedArray:
        """Ids of the readable samples."""
        return self.samples.column("sample_id")

    @property
    def unresolved_ids(self) -> frozenset[str]:
        """Ids of samples with images that are not there, as far as they are listed."""
        return frozenset(sample_id for sample_id, _, _ in self.unresolved.first)

    @property
    def is_sound(self) -> bool:
        """True if nothing is damaged, unreadable, duplicate or missing, and every member is a regular file.

        Unreferenced members do no harm, and what is erased is no fault.
        """
        faults = self.losses.keys() - DENIED
        return not (faults or self.unresolved.count or self.frame_counts.count or self.skipped.count)


def layout_digest(layout: RawLayout, max_member_bytes: int) -> str:
    """Return a digest of everything that a survey depends on besides the shard itself."""
    stated = stated_fields(asdict(layout))
    settings = json.dumps(
        {**stated, "max_member_bytes": max_member_bytes, "revision": _REVISION}, sort_keys=True
    )
    return hashlib.sha256(settings.encode()).hexdigest()[:32]


def survey_shard(
    partition: str,
    files: Sequence[str],
    version: str,
    layout: RawLayout,
    relative_to: str | None,
    *,
    max_member_bytes: int,
) -> ShardSurvey:
    """Survey the files of one raw shard.

    Args:
        partition: the shard.
        files: its files.
        version: see `RawShard`.
        layout: the fields of documents.
        relative_to: locators below it are stored relative to it, as in the data.
        max_member_bytes: larger members are faults.
    """
    surveys = []
    for file in files:
        source = ref_path(file, relative_to)
        of_shard = Partition(partition, tuple(files))
        if is_parquet(file):
            survey = survey_parquet(file, layout, source, of_shard, max_member_bytes=max_member_bytes)
        else:
            prefix = id_prefix(layout.sample_id_prefix, partition, files, file)
            survey = survey_tar(
                file,
                layout,
                source,
                max_member_bytes=max_member_bytes,
                id_prefix=prefix,
                samples=samples_of(file, of_shard),
            )
        surveys.append((source, survey))
    return merge_files(surveys, version, layout_digest(layout, max_member_bytes))


def merge_files(files: Sequence[tuple[str, FileSurvey]], version: str, layout: str) -> ShardSurvey:
    """Merge the surveys of a shard's files, in order; the first sample of an id keeps it.

    Args:
        files: ref path and survey of each file.
        version: of the shard.
        layout: digest of the layout.
    """
    samples: list[tuple[str, SurveyedSample]] = []
    losses: list[Loss] = []
    ids = SampleIds()
    tallies: dict[str, FieldTally] = {}
    ints: dict[str, FieldTally] = {}
    for source, found in files:
        losses.extend(loss for loss in found.losses if loss.is_cause)
        for sample in found.samples:
            if (collision := ids.register(sample.sample_id, sample.member, source)) is None:
                samples.append((source, sample))
            else:
                losses.append(_repeated(sample, source, collision))
        for merged, tallied in ((tallies, found.tallies), (ints, found.declared_ints)):
            for name, tally in tallied.items():
                merged.setdefault(name, FieldTally()).merge(tally)
    kinds = dict.fromkeys(loss.kind for loss in losses)
    declared = unify_schemas([schema for _, found in files for schema in found.declared])
    if len(files) > 1:  # a column of one file is null in the others
        declared = pa.schema([column.with_nullable(True) for column in declared])
    named = [(f"{source}: " if len(files) > 1 else "", found) for source, found in files]
    return ShardSurvey(
        version,
        layout,
        _samples_table(samples),
        {kind: Excerpt.of([loss for loss in losses if loss.kind == kind]) for kind in kinds},
        Excerpt.of([entry for _, found in files for entry in found.unresolved]),
        Excerpt.of(
            [
                (name + member, frames, refs)
                for name, found in named
                for member, frames, refs in found.frame_counts
            ]
        ),
        Excerpt.of([name + member for name, found in named for member in found.unreferenced]),
        Excerpt.of([name + member for name, found in named for member in found.skipped]),
        ShardColumns(tallies, declared, ints),
        sum(found.members for _, found in files),
        sum(found.nbytes for _, found in files),
        merged_content(found.content for _, found in files),
        any(found.has_pairs for _, found in files),
        Excerpt.of([name + member for name, found in named for member in found.left_out]),
        " ".join(dict.fromkeys(found.documents for _, found in files if found.documents)),
    )


def scrubbed_survey(
    partition: str, survey: ShardSurvey, deny: DenyList, aliases: Collection[str] = ()
) -> ShardSurvey:
    """Return the survey of a shard, in which erased samples have their aliases and nothing else.

    Args:
        partition: the shard.
        survey: of its raw shard.
        deny: the deny list.
        aliases: of further samples that are erased, for what is on their rows.
    """
    ids = survey.sample_ids.to_pylist()
    hidden = {name for name in ids if deny.hides_sample(name) or (aliases and alias_of(name) in aliases)}
    names = deny.names_hidden_in(partition, survey.samples.column("source").unique().to_pylist())

    def others(entries: Excerpt[T], name_of: Callable[[T], str] = str) -> Excerpt[T]:
        kept = tuple(entry for entry in entries.first if names([name_of(entry)]) != [ERASED])
        return Excerpt(kept, entries.count - len(entries.first) + len(kept))

    samples = survey.samples
    if hidden:
        members = [
            "" if name in hidden else own
            for name, own in zip(ids, samples["member"].to_pylist(), strict=True)
        ]
        told = [alias_of(name) if name in hidden else name for name in ids]
        samples = samples.set_column(0, SAMPLES_SCHEMA.field("sample_id"), pa.array(told, pa.string()))
        samples = samples.set_column(1, SAMPLES_SCHEMA.field("member"), pa.array(members, pa.string()))
    losses: dict[str, Excerpt[Loss]] = {}
    for kind, of_kind in survey.losses.items():
        scrubbed = deny.scrubbed(of_kind.first, aliases)
        for told_kind in (kind, ERASED):
            found = tuple(loss for loss in scrubbed if loss.kind == told_kind)
            unlisted = of_kind.count - len(scrubbed) if told_kind == kind else 0
            if found or unlisted:
                before = losses.get(told_kind, Excerpt())
                losses[told_kind] = Excerpt((*before.first, *found), before.count + len(found) + unlisted)
    unresolved = tuple(entry for entry in survey.unresolved.first if entry[0] not in hidden)
    content = survey.content
    return replace(
        survey,
        samples=samples,
        losses=losses,
        columns=survey.columns.rounded() if hidden else survey.columns,  # the largest number may be of one
        unresolved=Excerpt(
            unresolved, survey.unresolved.count - len(survey.unresolved.first) + len(unresolved)
        ),
        frame_counts=others(survey.frame_counts, lambda entry: entry[0]),
        unreferenced=others(survey.unreferenced),
        skipped=others(survey.skipped),
        left_out=None if survey.left_out is None else others(survey.left_out),
        content=None if content is None else {key: tuple(names(lines)) for key, lines in content.items()},
    )


def findings(survey: ShardSurvey) -> dict[str, Any]:
    """Return the problems of a raw shard for an asset check.

    They are counts by kind, and the first 20 of each as ``<kind>_first``.
    """
    found: dict[str, Any] = {"samples": survey.samples.num_rows}
    damage = [loss for kind in DAMAGE if kind in survey.losses for loss in survey.losses[kind].first]
    found["damage"] = sum(survey.losses[kind].count for kind in DAMAGE if kind in survey.losses)
    found["damage_first"] = [
        {"kind": loss.kind, "offset": _place(loss)[1], "message": loss.reason} for loss in damage
    ]
    unreadable = {
        kind: losses for kind, losses in survey.losses.items() if kind not in (*DAMAGE, DUPLICATE_ID, *DENIED)
    }
    found["unreadable"] = sum(losses.count for losses in unreadable.values())
    for kind, losses in unreadable.items():
        found[kind] = losses.count
        found[f"{kind}_first"] = [_sample_entry(loss) for loss in losses.first]
    repeated = survey.losses.get(DUPLICATE_ID, Excerpt())
    found["repeated_ids"] = repeated.count
    found["repeated_ids_first"] = [_sample_entry(loss) for loss in repeated.first]
    found["unresolved"] = survey.unresolved.count
    found["unresolved_first"] = [
        dict(zip(("sample_id", "position", "message"), e, strict=True)) for e in survey.unresolved.first
    ]
    found["frame_counts"] = survey.frame_counts.count
    found["frame_counts_first"] = [
        dict(zip(("member", "frames", "references"), e, strict=True)) for e in survey.frame_counts.first
    ]
    found["unreferenced"] = survey.unreferenced.count
    found["unreferenced_first"] = list(survey.unreferenced.first)
    found["skipped"] = survey.skipped.count
    found["skipped_first"] = list(survey.skipped.first)
    if survey.left_out is not None and survey.left_out.count:
        found["left_out"] = survey.left_out.count
        found["left_out_first"] = list(survey.left_out.first)
    return {
        name: value[:_SHOWN] if isinstance(value, list) else value
        for name, value in found.items()
        if value != []
    }


def _samples_table(samples: Iterable[tuple[str, SurveyedSample]]) -> pa.Table:
    rows = [
        (s.sample_id, s.member, source, s.byte_offset, s.byte_size, s.items, s.images)
        for source, s in samples
    ]
    columns = zip(*rows, strict=True) if rows else [[]] * len(SAMPLES_SCHEMA)
    return pa.table(
        [pa.array(values, f.type) for values, f in zip(columns, SAMPLES_SCHEMA, strict=True)],
        schema=SAMPLES_SCHEMA,
    )


def _repeated(sample: SurveyedSample, source: str, reason: str) -> Loss:
    ref = build_source_ref(source, sample.member, sample.byte_offset, sample.byte_size)
    return Loss(
        sample.sample_id, METADATA_POSITION, "metadata", "quarantined", DUPLICATE_ID, reason, source_ref=ref
    )


def _sample_entry(loss: Loss) -> dict[str, Any]:
    member, offset = _place(loss)
    return {"sample_id": loss.sample_id, "member": member, "offset": offset, "message": loss.reason}


def _place(loss: Loss) -> tuple[str | None, int | None]:
    ref = parse_source_ref(loss.source_ref)
    return ref["member"], ref["byte_offset"]
