"""What a report has of one shard: what was taken out of it, and what there is, kept and dropped.

* `shard_report` reads the accounts of a shard, its stored scores, and columns of its curated metadata rows.
* `Amounts`: numbers of items, and bytes of images.
* `Spread`: the values of a score, in bins of 1.6 % whatever their range.
* `Labels`: texts that samples have, such as their languages, by the columns in `LABELS`.
* `Sources`: where samples are from, by what their metadata columns say.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import BY_ASSET, CURATED, DERIVED_FOLDERS, FILTERED, OUTPUTS, ShardRecord
from mm_assets.accounting.accounts import Ledger
from mm_assets.filters.condition import HOST
from mm_assets.filters.duplicates import DEDUP
from mm_assets.filters.measure import is_measured
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, read_small_table
from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
from mm_assets.formats.partitions import Partition
from mm_assets.model.errors import MmAssetsError
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import join
from mm_assets.view.preview_scores import IMAGES, SAMPLES, Numbers
from mm_assets.view.preview_study import Count, Pick

Records = Mapping[str, Mapping[str, ShardRecord]]
"""Records of shards by asset, then by shard."""


@dataclass(frozen=True)
class Amounts(Count):
    """Numbers of items, of the images, samples and texts among them, and bytes of the images."""

    texts: int = 0

    @classmethod
    def written(cls, record: ShardRecord) -> Amounts:
        """Return what a shard holds, by its record."""
        written = record.account.get("written", {})
        rows, images, samples, texts = (
            written.get(name, 0) for name in ("rows", "images", "samples", "texts")
        )
        return cls(rows, images, samples, record.metadata.get("image_bytes", 0), texts)


NOTHING: Final = Amounts()
_COPY: Final = "copy of another one"
_BITS: Final = 46  # of a float64 that are cut off: sign, exponent and 6 bits of the fraction stay


@dataclass
class Spread:
    """Values of a score: how many are kept and dropped, by the value at the lower end of a bin of 1.6 %."""

    kept: Counter[int] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)

    def add(self, values: Numbers, is_dropped: npt.NDArray[np.bool_]) -> None:
        """Count values, of which some are dropped; those that are no number are left out."""
        is_number = np.isfinite(values)
        bins = values[is_number].view(np.int64) >> _BITS
        for side, chosen in ((self.kept, ~is_dropped), (self.dropped, is_dropped)):
            found, counts = np.unique(bins[chosen[is_number]], return_counts=True)
            side.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: Spread) -> None:
        """Add those of other shards."""
        self.kept.update(other.kept)
        self.dropped.update(other.dropped)

    def counts(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return values in order, and how many of each are kept and dropped."""
        bins = np.array(sorted(self.kept.keys() | self.dropped.keys()), np.int64)
        values = (bins << _BITS).view(np.float64)
        order = np.argsort(values)
        kept, dropped = (
            np.array([side[number] for number in bins[order].tolist()], np.float64)
            for side in (self.kept, self.dropped)
        )
        return values[order], kept, dropped


_MOST_LABELS: Final = 50_000


@dataclass
class Labels:
    """Texts that samples have, such as languages: how many samples are kept and dropped.

    Attributes:
        columns: the columns that they are from.
        is_cut: whether rare ones were left out, as there were too many.
    """

    columns: set[str] = field(default_factory=set)
    kept: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    is_cut: bool = False

    def merge(self, other: Labels) -> None:
        """Add those of other shards."""
        self.columns |= other.columns
        self.is_cut |= other.is_cut
        for mine, theirs in ((self.kept, other.kept), (self.dropped, other.dropped)):
            mine.update(theirs)
            if len(mine) > 2 * _MOST_LABELS:
                self.is_cut = True
                for label, _ in mine.most_common()[_MOST_LABELS:]:
                    del mine[label]

    @property
    def before(self) -> Counter[str]:
        """Samples by label, before the filters."""
        return self.kept + self.dropped


_MOST_DOMAINS: Final = 500_000


@dataclass
class Sources:
    """Where the rows of an output are from, by what its metadata columns say.

    Attributes:
        asset: the output.
        sets: how much there is of each folder of raw shards.
        erasures: requests to erase something that are on record.
        columns: by what they say: ``domains`` or ``fetched``.
        words: words of the texts, between white space.
        nbytes: bytes of texts in UTF-8 and of images, by domain; those of samples without one under "".
        documents: samples, likewise.
        months: the first and the last month of collection, as ``2024-05``.
        opt_outs: samples by value, by the column that has it; only values other than null.
        unsized: images whose bytes are not counted, as no score says how many these are.
        is_cut: whether small domains were left out, as there were too many.
    """

    asset: str = ""
    sets: dict[str, Amounts] = field(default_factory=dict)
    erasures: int = 0
    columns: dict[str, set[str]] = field(default_factory=dict)
    words: int = 0
    nbytes: Counter[str] = field(default_factory=Counter)
    documents: Counter[str] = field(default_factory=Counter)
    months: tuple[str, str] | None = None
    opt_outs: dict[str, Counter[str]] = field(default_factory=dict)
    unsized: int = 0
    is_cut: bool = False

    @property
    def domains(self) -> dict[str, int]:
        """Bytes by domain."""
        return {name: nbytes for name, nbytes in self.nbytes.items() if name}

    @property
    def period(self) -> list[str]:
        """The first and the last month of collection, as ``05/2024``; empty if not known."""
        return [f"{month[5:]}/{month[:4]}" for month in self.months or ()]

    def merge(self, other: Sources) -> None:
        """Add those of other shards."""
        for what, names in other.columns.items():
            self.columns.setdefault(what, set()).update(names)
        self.words += other.words
        self.unsized += other.unsized
        for name, values in other.opt_outs.items():
            self.opt_outs.setdefault(name, Counter()).update(values)
        ends = [*(self.months or ()), *(other.months or ())]
        self.months = (min(ends), max(ends)) if ends else None
        self.documents.update(other.documents)
        self.nbytes.update(other.nbytes)
        if len(self.nbytes) > 2 * _MOST_DOMAINS:
            self.is_cut = True
            for domain, _ in self.nbytes.most_common()[_MOST_DOMAINS:]:
                del self.nbytes[domain], self.documents[domain]


LANGUAGES, DOMAINS, LICENCES = "languages", "domains", "licences"
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    LANGUAGES: ("language", "lang", "language_id", "language_id_whole_page_fasttext"),
    DOMAINS: ("url", "source_url", "page_url", "document_url", "warc_target_uri", "domain"),
    LICENCES: ("license", "licence", "licenses", "licences", "license_type", "license_url", "cc_license"),
}
"""Names of metadata columns; the first that there is counts, in any case, and with ``-`` for ``_``."""

FETCHED: Final = (
    *("crawl_date", "crawled_at", "crawl_timestamp", "fetch_date", "fetch_time", "fetched_at"),
    *("download_date", "downloaded_at", "date_download", "warc_date"),
)
"""Names of columns with the time at which a document was collected; not those of its publication."""

OPT_OUTS: Final = (
    *("x_robots_tag", "robots_tag", "robots", "robots_meta", "robots_txt", "ai_txt", "noai", "noimageai"),
    *("tdm_reservation", "tdm_policy", "tdmrep", "opt_out", "opted_out"),
)
"""Names of columns with what rightsholders reserve."""

_SCHEME: Final = r"(?i)^\s*(?:[a-z][a-z0-9+-]*:|[a-z][a-z0-9+.-]*://)"  # no dot: that is a host with a port
MOST_PICKS: Final = 8  # of a filter
MOST_FAULTS: Final = 3  # messages of a kind
_IMAGE_COLUMNS: Final = ("sample_id", "position", "width", "height", "format", "byte_size")
_DIGESTS: Final = {"documents with equal texts": "text_digest", "images with equal bytes": "sha256"}


@dataclass
class ShardReport:
    """What was found in one shard, as in a `Report`; ``lost`` is by asset, outcome and kind.

    Of one that ``is_damaged``, a range of the raw shard cannot be read: nobody knows what was in it.
    """

    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    flagged: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: list[tuple[str, str, str, Amounts]] = field(default_factory=list)
    faults: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    formats: Labels = field(default_factory=Labels)
    labels: dict[str, Labels] = field(default_factory=dict)
    digests: dict[str, npt.NDArray[np.uint64]] = field(default_factory=dict)
    picks: dict[str, list[Pick]] = field(default_factory=dict)
    is_scored: bool = False
    is_damaged: bool = False
    notes: list[str] = field(default_factory=list)


def is_current(records: Records, asset: str, key: str) -> bool:
    """Return whether a shard of an asset is made of the rows of its source as they are now."""
    record = records[asset].get(key)
    source = BY_ASSET[asset].source if asset in BY_ASSET else CURATED.asset
    if record is None or source is None:
        return record is not None
    of = records[source].get(key)
    return of is not None and record.account.get("inputs", {}).get(source, of.version) == of.version


def shard_report(
    root: str, ledger: Ledger, records: Records, key: str, *, reads_scores: bool = True
) -> ShardReport:
    """Return what one shard has.

    Args:
        records: of all shards.
        reads_scores: whether its scores and columns are read, beside its accounts.
    """
    part = ShardReport()
    losses = {}
    for output in OUTPUTS:
        record = records[output.asset].get(key)
        if record is not None and record.lost_rows and is_current(records, output.asset, key):
            losses[output.asset] = ledger.items(output.asset, key)
            _count_flags(part, losses[output.asset])
    file_name = f"{partition_filename(key)}.parquet"
    filtered = losses.pop(FILTERED.asset, None)
    for asset, items in losses.items():
        _count_losses(part, asset, items)
    _note_faults(part, losses.get(CURATED.asset))
    dropped = _of_outcome(filtered, "filtered")
    sizes = None
    if reads_scores and all(is_current(records, of, key) for of in (FILTERED.asset, IMAGES, SAMPLES)):
        try:
            sizes = _count_images(part, join(root, DERIVED_FOLDERS[IMAGES], file_name), dropped)
            gone = dropped.filter(pc.equal(dropped["position"], -1))["sample_id"].combine_chunks()
            _count_samples(part, join(root, DERIVED_FOLDERS[SAMPLES], file_name), dropped, gone)
            _count_labels(part, join(root, CURATED.folder, file_name), gone)
            part.is_scored = True
        except (OSError, UnreadableFile, MmAssetsError) as error:
            part.spreads, part.labels, part.digests, part.formats = {}, {}, {}, Labels()
            sizes = None
            part.notes.append(f"left out: {error_line(error).removeprefix(join(root, ''))}")
    if filtered is not None:
        if sizes is None:
            sizes = _estimated_sizes(dropped, *(records[one.asset][key] for one in (CURATED, FILTERED)))
        _count_losses(part, FILTERED.asset, filtered, sizes)
        _count_reasons(part, dropped, file_name)
    return part


_NO_ITEMS: Final = pa.schema(
    [("sample_id", pa.string()), ("position", pa.int32()), ("modality", pa.string()), ("kind", pa.string())]
).empty_table()


def _of_outcome(items: pa.Table | None, outcome: str) -> pa.Table:
    return _NO_ITEMS if items is None else items.filter(pc.equal(items["outcome"], outcome))


Sizes = Mapping[str, int]
"""Bytes of dropped images by kind."""


def _estimated_sizes(dropped: pa.Table, curated: ShardRecord, filtered: ShardRecord) -> Sizes:
    """Return the bytes of all dropped images, divided by how long their members in the raw shard are."""
    gone = Amounts.written(curated).nbytes - Amounts.written(filtered).nbytes
    images = dropped.filter(pc.equal(dropped["modality"], "image"))
    groups = images.group_by("kind").aggregate([("byte_size", "sum")])
    known = dict(zip(groups["kind"].to_pylist(), groups["byte_size_sum"].to_pylist(), strict=True))
    of = sum(size or 0 for size in known.values())
    sizes = {kind: gone * (size or 0) // of if of else 0 for kind, size in known.items()}
    if sizes:  # what is left of the division
        sizes[max(sizes, key=sizes.__getitem__)] += gone - sum(sizes.values())
    return sizes


def _count_losses(part: ShardReport, asset: str, items: pa.Table, sizes: Sizes | None = None) -> None:
    """Count the items that were taken out, by kind; without ``sizes``, bytes are those in the raw shard."""
    lost = items.filter(pc.is_in(items["outcome"], pa.array(["filtered", "quarantined"])))
    part.is_damaged |= lost["position"].null_count > 0
    lost = lost.filter(pc.is_valid(lost["position"]))  # a damaged range holds an unknown number of items
    groups = lost.group_by(["outcome", "kind", "modality"]).aggregate(
        [("position", "count"), ("byte_size", "sum")]
    )
    for group in groups.to_pylist():
        count, modality = group["position_count"], group["modality"]
        nbytes = 0
        if modality == "image":
            nbytes = group["byte_size_sum"] if sizes is None else sizes.get(group["kind"], 0)
        amounts = Amounts(
            count,
            count if modality == "image" else 0,
            count if modality == "metadata" else 0,
            nbytes or 0,
            count if modality == "text" else 0,
        )
        part.lost.append((asset, group["outcome"], group["kind"], amounts))


def _count_flags(part: ShardReport, items: pa.Table) -> None:
    flagged = items.filter(pc.equal(items["outcome"], "flagged"))
    if flagged.num_rows:
        part.flagged.update(_by_reason(flagged))


def _by_reason(items: pa.Table) -> Counter[tuple[str, str]]:
    groups = items.group_by(["kind", "reason"]).aggregate([("outcome", "count")])
    found: Counter[tuple[str, str]] = Counter()
    for group in groups.to_pylist():
        reason = _COPY if group["kind"] in DEDUP else group["reason"]  # which of each, the clusters tell
        found[group["kind"], reason] += group["outcome_count"]
    return found


def _count_reasons(part: ShardReport, dropped: pa.Table, file_name: str) -> None:
    """Count reasons, and pick the first images that each filter drops."""
    # What goes with its sample has its own words for each sample.
    causes = dropped.filter(dropped["is_cause"])
    part.reasons.update(_by_reason(causes))
    others = dropped.filter(pc.invert(dropped["is_cause"]))
    for entry in pc.value_counts(others["kind"]).to_pylist():
        part.reasons[entry["values"], "goes with its sample"] += entry["counts"]
    images = causes.filter(pc.equal(causes["modality"], "image"))
    for kind in pc.unique(images["kind"]).to_pylist():
        rows = images.filter(pc.equal(images["kind"], kind)).slice(0, MOST_PICKS // 2)
        part.picks[kind] = [
            Pick(file_name, row["sample_id"], row["position"], row["score"])
            for row in rows.select(["sample_id", "position", "score"]).to_pylist()
        ]


def _note_faults(part: ShardReport, items: pa.Table | None) -> None:
    """Take the first messages of each kind of fault."""
    if items is None:
        return
    causes = items.filter(pc.and_(items["is_cause"], pc.equal(items["outcome"], "quarantined")))
    for kind in pc.unique(causes["kind"]).to_pylist():
        rows = causes.filter(pc.equal(causes["kind"], kind)).slice(0, MOST_FAULTS)
        part.faults[kind] = [(row["partition"], row["reason"]) for row in rows.to_pylist()]


def _measured_columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the columns of measures that are numbers."""
    for column in table.schema:
        if is_measured(column) and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            yield column.name, table[column.name]


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _count_images(part: ShardReport, uri: str, dropped: pa.Table) -> Sizes:
    """Count the scores of images, and return the bytes of the dropped ones by kind."""
    table = read_small_table(uri)
    measured = dict(_measured_columns(table))
    digest = _DIGESTS["images with equal bytes"]
    names = [*_IMAGE_COLUMNS, *measured, *([digest] if digest in table.column_names else [])]
    why = dropped.filter(pc.equal(dropped["modality"], "image")).select(["sample_id", "position", "kind"])
    if why.num_rows:
        table = table.select(names).join(why, ["sample_id", "position"], join_type="left outer")
    else:
        table = table.select(names).append_column("kind", pa.nulls(table.num_rows, pa.string()))
    is_dropped = table["kind"].is_valid().to_numpy(zero_copy_only=False)
    width, height, nbytes = (_numbers(table[name]) for name in ("width", "height", "byte_size"))
    with np.errstate(all="ignore"):
        ratio = np.where((width > 0) & (height > 0), width / height, np.nan)
    columns = {
        "aspect ratio": ratio,
        "longer side": np.fmax(width, height),
        "bytes of an image": nbytes,
        **{name: _numbers(table[name]) for name in measured},
    }
    for name, values in columns.items():
        part.spreads.setdefault(name, Spread()).add(values, is_dropped)
    _count_texts(part.formats, table["format"].fill_null("unreadable"), is_dropped)
    if digest in table.column_names:
        part.digests["images with equal bytes"] = _first_bits(table[digest])
    groups = table.filter(table["kind"].is_valid()).group_by("kind").aggregate([("byte_size", "sum")])
    return dict(zip(groups["kind"].to_pylist(), groups["byte_size_sum"].to_pylist(), strict=True))


def _count_samples(part: ShardReport, uri: str, dropped: pa.Table, gone: pa.Array) -> None:
    """Count the scores of samples and of their texts."""
    table = read_small_table(uri)
    is_gone = pc.is_in(table["sample_id"], gone).to_numpy(zero_copy_only=False)
    for name in ("images", "texts", "words"):
        spread = part.spreads.setdefault(f"{name} of a document", Spread())
        spread.add(_numbers(table[name]), is_gone)
    for name, column in _measured_columns(table):
        part.spreads.setdefault(f"{name} of a document", Spread()).add(_numbers(column), is_gone)
    for column in table.schema:
        if is_measured(column) and pa.types.is_list(column.type) and column.name != "text_position":
            kind = column.type.value_type
            if pa.types.is_integer(kind) or pa.types.is_floating(kind):
                values = table[column.name].combine_chunks()
                of = pc.list_parent_indices(values).to_numpy()
                spread = part.spreads.setdefault(f"{column.name} of a text", Spread())
                spread.add(_numbers(pa.chunked_array([pc.list_flatten(values)])), is_gone[of])
    if "language" in table.column_names:
        _count_texts(
            part.labels.setdefault(LANGUAGES, Labels({"score language"})), table["language"], is_gone
        )
    part.digests["documents with equal texts"] = _first_bits(
        table.filter(pc.greater(table["texts"], 0))["text_digest"]
    )


def _first_bits(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the first 64 bits of digests in hex."""
    texts = column.drop_null().combine_chunks()
    if not len(texts):
        return np.zeros(0, np.uint64)
    if pa.types.is_binary(texts.type) or pa.types.is_fixed_size_binary(texts.type):
        return np.array([int.from_bytes(value[:8], "big") for value in texts.to_pylist()], np.uint64)
    return np.array([int(value[:16], 16) for value in texts.to_pylist()], np.uint64)


def _count_labels(part: ShardReport, uri: str, gone: pa.Array) -> None:
    """Count languages, domains and licences by the metadata columns that curated rows have."""
    missing = [what for what in LABELS if what not in part.labels]
    partition = Partition(uri, (uri,))
    reader = InterleavedParquetReader(())
    schema = reader.open(partition).schema
    wanted = {what: name for what in missing if (name := text_column(schema, LABELS[what])) is not None}
    names = ["sample_id", "position", *dict.fromkeys(wanted.values())]
    _, tables = reader.project(partition, names)
    for table in tables:
        rows = table.filter(pc.equal(table["position"], -1))
        is_gone = pc.is_in(rows["sample_id"], gone).to_numpy(zero_copy_only=False)
        for what, name in wanted.items():
            labels = part.labels.setdefault(what, Labels({name}))
            _count_texts(labels, _TO_LABELS[what](as_text(rows[name])), is_gone)
        for what in set(missing).difference(wanted):  # other shards may have such a column
            labels = part.labels.setdefault(what, Labels())
            _count_texts(labels, pa.chunked_array([pa.nulls(rows.num_rows, pa.string())]), is_gone)


def plain_name(name: str) -> str:
    """Return the name that a column is recognised by."""
    return name.lower().replace("-", "_")


def text_column(schema: pa.Schema, names: Sequence[str]) -> str | None:
    """Return the column with the first of some names that any has; None unless it has texts, or times."""
    spelled = {plain_name(name): name for name in schema.names}
    found = next((spelled[name] for name in names if name in spelled), None)
    kind = pa.null() if found is None else schema.field(found).type
    return found if _is_text(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored))


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(chunks, column.type.storage_type)
    return column.cast(pa.string())


def hosts_of(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return hosts of URLs; of URLs that have none, as ``javascript:`` and files, null. Names stay."""
    hosts = pc.struct_field(pc.extract_regex(texts, HOST), "host")
    names = pc.if_else(pc.match_substring_regex(texts, _SCHEME), None, texts)
    return pc.utf8_lower(pc.coalesce(hosts, names))


_SCORED_LANGUAGE: Final = re.compile(r'^"?\{')


def _languages(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return codes of languages; of JSON with a score for each language the best one."""
    encoded = texts.dictionary_encode()

    def best(text: str | None) -> str | None:
        if text is None or not _SCORED_LANGUAGE.match(text):
            return text
        try:
            found = json.loads(text)
            found = json.loads(found) if isinstance(found, str) else found
            return str(max(found, key=found.get)) if found else None
        except (ValueError, TypeError, RecursionError):
            return text

    return pa.chunked_array(
        [
            pa.array([best(text) for text in chunk.dictionary.to_pylist()], pa.string()).take(chunk.indices)
            for chunk in encoded.chunks
        ],
        pa.string(),
    )


def _plain(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_trim_whitespace(texts)


_TO_LABELS: Final = {LANGUAGES: _languages, DOMAINS: hosts_of, LICENCES: _plain}
LONGEST_LABEL: Final = 100  # characters


def _count_texts(labels: Labels, texts: pa.ChunkedArray, is_dropped: npt.NDArray[np.bool_]) -> None:
    cut = pc.utf8_slice_codeunits(texts, 0, LONGEST_LABEL)
    for side, chosen in ((labels.kept, ~is_dropped), (labels.dropped, is_dropped)):
        for entry in pc.value_counts(cut.filter(pa.array(chosen))).to_pylist():
            side["not stated" if entry["values"] is None else entry["values"]] += entry["counts"]
