"""Report on a data set: what went where, and what there is before and after the filters.

`gather` makes a `Report` of what each shard has (`ShardReport`). Image bytes are not read; a page reads those
of the few `Pick`s that it shows. Beside sums of the shards there are:

* `Stage`: an output beside what it is made from, with what was lost on the way, by kind. The amounts of a
  stage add up (`Stage.unaccounted`).
* `Copies`: groups of samples and images that are equal.
* `Cloud`: stored embeddings of some images, in the two directions in which they differ most.

`gather_sources` tells where the data are from, for a summary.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import CURATED, DERIVED_FOLDERS, FILTERED, OUTPUTS, REFERRED, statistics_folder
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.erasures import ErasureStore
from mm_assets.accounting.proof import ProofStore
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.filters.duplicates import SCHEMA as VERDICTS
from mm_assets.filters.duplicates import VerdictIndex, verdicts_uri
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, read_small_table
from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
from mm_assets.formats.partitions import Partition
from mm_assets.model.json_codec import to_json_text
from mm_assets.model.schema import schema_from_text, unify_schemas
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import join
from mm_assets.view.overview import evenly_spread
from mm_assets.view.preview_page import counted_in_thousands
from mm_assets.view.preview_scores import IMAGES, SAMPLES, Numbers
from mm_assets.view.preview_study import Pick
from mm_assets.view.sample import byte_size
from mm_assets.view.shard_report import (
    DOMAINS,
    FETCHED,
    LABELS,
    LONGEST_LABEL,
    MOST_FAULTS,
    MOST_PICKS,
    OPT_OUTS,
    Amounts,
    Labels,
    Records,
    ShardReport,
    Sources,
    Spread,
    as_text,
    hosts_of,
    is_current,
    plain_name,
    shard_report,
    text_column,
)

REPORT: Final = "report"
"""Folder of the page below the storage root; the asset's name, too."""
RAW: Final = "raw_shards"
NOTHING: Final = Amounts()
_THREADS: Final = 4
MOST_SCORED: Final = 1000
"""Shards whose scores and columns are read, evenly spread; every account is."""


@dataclass
class Stage:
    """An output, and what became of that which it is made from.

    Attributes:
        asset: the output.
        source: what it is made from.
        shards: shards that it has.
        given: all rows of the source.
        waiting: those of shards that the output has not, or not of these very rows.
        lost: what was taken out, by outcome and kind.
        earlier: rows of the output that are of other rows than the source has now.
        written: all rows of the output.
        nbytes: bytes of its files.
        waiting_shards: shards that are waiting.
        referenced: images that it refers to, and has not itself.
    """

    asset: str
    source: str
    shards: int = 0
    given: Amounts = NOTHING
    waiting: Amounts = NOTHING
    lost: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    earlier: Amounts = NOTHING
    written: Amounts = NOTHING
    nbytes: int = 0
    waiting_shards: int = 0
    referenced: int = 0

    @property
    def unaccounted(self) -> Amounts:
        """What is missing, or with a minus too much: nothing, unless an account is wrong."""
        made_of = self.given - self.waiting - sum(self.lost.values(), NOTHING)
        return made_of - (self.written - self.earlier)

    def lose(self, outcome: str, kind: str, amounts: Amounts) -> None:
        """Count what was taken out."""
        self.lost[outcome, kind] = self.lost.get((outcome, kind), NOTHING) + amounts


@dataclass(frozen=True)
class Copies:
    """Samples or images that have a digest in common.

    Attributes:
        of: how many have a digest.
        groups: digests that more than one has.
        surplus: how many there are beyond one of each digest.
        largest: the size of the largest group.
    """

    of: int
    groups: int
    surplus: int
    largest: int

    @classmethod
    def among(cls, digests: Sequence[npt.NDArray[np.uint64]]) -> Copies:
        """Return the copies among digests, of which the first 64 bits are compared."""
        every = np.concatenate(digests) if digests else np.zeros(0, np.uint64)
        _, counts = np.unique(every, return_counts=True)
        several = counts[counts > 1]
        largest = int(several.max()) if len(several) else 0
        return cls(len(every), len(several), int((several - 1).sum()), largest)


@dataclass(frozen=True)
class FoundCopies:
    """Documents or images that `mm-assets duplicates` has found to be copies, by its verdicts.

    Attributes:
        exact: copies that are equal to what stays; ``near`` are the others.
        clusters: number of those that stay and have copies.
        largest: the names of those with the most copies, and how many these are.
        pairs: some copies, each with what stays in its place.
        outdated: shards that were made anew since.
    """

    exact: int
    near: int
    clusters: int
    largest: Sequence[tuple[str, int]]
    pairs: Sequence[Pick]
    outdated: int

    @classmethod
    def of(cls, verdicts: pa.Table, outdated: int) -> FoundCopies:
        """Return what verdicts on documents or images say.

        Args:
            verdicts: in the schema of the verdicts on a shard, and with the column ``shard``.
        """
        near = verdicts.num_rows - verdicts["measure"].null_count
        groups = verdicts.group_by(["original_id", "original_position"]).aggregate([("sample_id", "count")])
        ranked = groups.sort_by([("sample_id_count", "descending"), ("original_id", "ascending")])
        largest = [
            (_name_of(row["original_id"], row["original_position"]), row["sample_id_count"])
            for row in ranked.slice(0, _MOST_CLUSTERS).to_pylist()
        ]
        some = verdicts.take(pa.array(evenly_spread(range(verdicts.num_rows), _MOST_PAIRS), pa.int64()))
        return cls(
            verdicts.num_rows - near,
            near,
            groups.num_rows,
            largest,
            [
                Pick(
                    f"{partition_filename(row['shard'])}.parquet",
                    row["sample_id"],
                    row["position"],
                    row["measure"],
                    Pick(
                        f"{partition_filename(row['original_shard'])}.parquet",
                        row["original_id"],
                        row["original_position"],
                        None,
                    ),
                )
                for row in some.to_pylist()
            ],
            outdated,
        )


def _name_of(sample_id: str, position: int | None) -> str:
    return sample_id if position is None else f"{sample_id} [{position}]"


@dataclass(frozen=True)
class Cloud:
    """Images in two dimensions.

    Attributes:
        column: the stored embedding.
        points: places of the images, two numbers each, within -1..1.
        is_dropped: whether the filters drop each.
        of: images with an embedding in the shards that were looked at.
        share: part of all variance that the two dimensions have.
    """

    column: str
    points: Numbers
    is_dropped: npt.NDArray[np.bool_]
    of: int
    share: float


@dataclass
class Report:
    """What is known of a data set.

    Attributes:
        made: time, in UTC.
        raw_shards: raw shards that were read or surveyed.
        stages: in the order of the graph.
        reasons: items that filters took out, by filter and reason.
        flagged: items that filters list and keep, by filter and reason.
        faults: some messages of each kind of faulty items, with the raw shard.
        scored_shards: shards whose scores and columns the figures below are of.
        spreads: by score, those of images before those of samples and of texts.
        labels: by what they are, as in `LABELS`.
        copies: by what is equal.
        found_copies: by what was compared, where duplicates were looked for.
        picks: some dropped images of each filter.
        schema: columns of the filtered rows.
        damaged_shards: raw shards of which a range cannot be read: nobody knows how much is in it.
        proof: content of ``proof.json``.
        settings: settings that shards were made with, by asset: text of JSON, and shards.
        notes: shards and columns that could not be looked at, in lines.
    """

    root: str
    made: datetime
    raw_shards: int = 0
    stages: dict[str, Stage] = field(default_factory=dict)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    flagged: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    scored_shards: int = 0
    spreads: dict[str, Spread] = field(default_factory=dict)
    formats: Labels = field(default_factory=Labels)
    labels: dict[str, Labels] = field(default_factory=dict)
    copies: dict[str, Copies] = field(default_factory=dict)
    found_copies: dict[str, FoundCopies] = field(default_factory=dict)
    picks: dict[str, list[Pick]] = field(default_factory=dict)
    cloud: Cloud | None = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    damaged_shards: int = 0
    proof: Mapping[str, Any] = field(default_factory=dict)
    settings: dict[str, Counter[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


_MOST_CLUSTERS: Final = 5
_MOST_PAIRS: Final = 6
_SHARD: Final = pa.field("shard", pa.string())
_MOST_REASONS: Final = 1000
_MOST_POINTS: Final = 20_000
_CLOUD_SHARDS: Final = 40
_EMBEDDING: Final = "clip_embedding"


def gather(root: str, progress: Callable[[int, int], None] = lambda done, of: None) -> Report:
    """Return what is known of the data below a storage root.

    Args:
        root: storage root, a folder or URL.
        progress: called with the shards that are done, and their number.

    Raises:
        ValueError: nothing is recorded there, or an account is damaged; in one line.
    """
    ledger = Ledger(root)
    curated = ledger.records(CURATED.asset, ledger.named(CURATED.asset))
    if not curated:
        raise ValueError(f"{root}: no shard is recorded here; make them: mm-assets run")
    records = {CURATED.asset: curated}
    for asset in (*(output.asset for output in OUTPUTS[1:]), IMAGES, SAMPLES):
        records[asset] = ledger.records(asset, ledger.named(asset))
    report = Report(root, datetime.now(UTC), raw_shards=len(curated))
    report.proof = ProofStore(root).summary()
    report.stages = {output.asset: _stage(output.asset, output.source, records) for output in OUTPUTS}
    report.stages = {asset: stage for asset, stage in report.stages.items() if stage.shards}
    _note_settings(report, records)
    keys, digests = sorted(curated), dict[str, list[npt.NDArray[np.uint64]]]()
    with ThreadPoolExecutor(_THREADS) as pool:
        chosen = frozenset(evenly_spread(keys, MOST_SCORED))
        parts = pool.map(
            lambda key: shard_report(root, ledger, records, key, reads_scores=key in chosen), keys
        )
        for done, part in enumerate(parts, start=1):
            _add(report, part)
            for what, found in part.digests.items():
                digests.setdefault(what, []).append(found)
            progress(done, len(keys))
    _count_raw(report, root)
    report.labels = {what: labels for what, labels in report.labels.items() if labels.columns}
    report.copies = {what: Copies.among(found) for what, found in digests.items()}
    _find_copies(report, curated)
    scored = [key for key in keys if is_current(records, IMAGES, key)]
    report.cloud = _cloud(root, ledger, evenly_spread(scored, _CLOUD_SHARDS))
    return report


def _stage(asset: str, source: str | None, records: Records) -> Stage:
    """Return a stage, without what was lost."""
    stage = Stage(asset, source or RAW, len(records[asset]))
    for key, record in records[asset].items():
        written = Amounts.written(record)
        stage.written += written
        stage.nbytes += record.account.get("nbytes", 0)
        stage.referenced += record.metadata.get(REFERRED, 0)
        if not is_current(records, asset, key):
            stage.earlier += written
    for key, record in ({} if source is None else records[source]).items():
        given = Amounts.written(record)
        stage.given += given
        if not is_current(records, asset, key):
            stage.waiting += given
            stage.waiting_shards += 1
    if source is None:
        items = (record.metadata.get("items_in") for record in records[asset].values())
        stage.given = Amounts(sum(number or 0 for number in items))
    return stage


def _count_raw(report: Report, root: str) -> None:
    """Complete what raw shards hold: of those that are read, only the number of items is stated."""
    stage = report.stages[CURATED.asset]
    known = stage.written + sum(stage.lost.values(), NOTHING)
    stage.given = Amounts(stage.given.items, known.images, known.samples, known.nbytes, known.texts)
    surveys = SurveyStore(root)
    unread = sorted(set(surveys.partitions()).difference(Ledger(root).named(CURATED.asset)))
    report.raw_shards += len(unread)
    stage.waiting_shards = len(unread)
    for _, survey in surveys.surveys(unread):
        samples, items, images = (
            survey.samples.num_rows,
            *(pc.sum(survey.samples[name]).as_py() or 0 for name in ("items", "images")),
        )
        stage.waiting += Amounts(items, images, samples, 0, items - images - samples)
    stage.given += stage.waiting


def _note_settings(report: Report, records: Records) -> None:
    schemas: dict[str, None] = {}
    for asset, by_key in records.items():
        for record in by_key.values():
            if settings := record.account.get("settings"):
                text = json.dumps(settings, sort_keys=True, indent=1, ensure_ascii=False)
                report.settings.setdefault(asset, Counter())[text] += 1
            if asset == FILTERED.asset or (asset == CURATED.asset and not records[FILTERED.asset]):
                schemas[record.account.get("schema", "")] = None
    if found := [schema_from_text(text) for text in schemas if text]:
        report.schema = unify_schemas(found)


def _add(report: Report, part: ShardReport) -> None:
    report.reasons.update(part.reasons)
    report.flagged.update(part.flagged)
    for counts in (report.reasons, report.flagged):
        if len(counts) > 2 * _MOST_REASONS:
            for (kind, reason), number in counts.most_common()[_MOST_REASONS:]:
                del counts[kind, reason]
                counts[kind, ""] += number
    for asset, outcome, kind, amounts in part.lost:
        if asset in report.stages:
            report.stages[asset].lose(outcome, kind, amounts)
    for kind, messages in part.faults.items():
        known = report.faults.setdefault(kind, [])
        known += messages[: MOST_FAULTS - len(known)]
    for name, spread in part.spreads.items():
        report.spreads.setdefault(name, Spread()).merge(spread)
    report.formats.merge(part.formats)
    for what, labels in part.labels.items():
        report.labels.setdefault(what, Labels()).merge(labels)
    for kind, picks in part.picks.items():
        shown = report.picks.setdefault(kind, [])
        shown += picks[: MOST_PICKS - len(shown)]
    report.scored_shards += part.is_scored
    report.damaged_shards += part.is_damaged
    report.notes += part.notes


def _find_copies(report: Report, curated: Mapping[str, Any]) -> None:
    """Read the verdicts on duplicates."""
    folder = statistics_folder(report.root)
    tables = [VERDICTS.append(_SHARD).empty_table()]
    try:
        index = VerdictIndex.read(folder)
        for shard, (_, digest) in index.shards.items():
            if digest:
                table = read_small_table(verdicts_uri(folder, shard), VERDICTS.names)
                tables.append(table.append_column(_SHARD, pa.array([shard] * table.num_rows, pa.string())))
    except (UnreadableFile, OSError) as error:
        report.notes.append(f"left out: {error_line(error).removeprefix(join(report.root, ''))}")
        return
    present = ((shard, curated[shard].version) for shard in index.shards if shard in curated)
    outdated = sum(index.fault(shard, version) is not None for shard, version in present)
    every = pa.concat_tables(tables)
    is_of_image = every["position"].is_valid()
    for what, verdicts in (("documents", pc.invert(is_of_image)), ("images", is_of_image)):
        found = every.filter(verdicts)
        if found.num_rows:
            report.found_copies[what] = FoundCopies.of(found, outdated)


def _cloud(root: str, ledger: Ledger, keys: Sequence[str]) -> Cloud | None:
    """Return the images of some shards by their stored embeddings; None where there are none."""
    vectors: list[Numbers] = []
    dropped: list[npt.NDArray[np.bool_]] = []
    of, room = 0, -(-_MOST_POINTS // max(len(keys), 1))
    for key in keys:
        uri = join(root, DERIVED_FOLDERS[IMAGES], f"{partition_filename(key)}.parquet")
        try:
            table = read_small_table(uri, ["sample_id", "position", _EMBEDDING])
        except (UnreadableFile, OSError):  # without the column, or counted among those left out
            continue
        table = table.filter(table[_EMBEDDING].is_valid())
        of += table.num_rows
        table = table.take(pa.array(evenly_spread(range(table.num_rows), room), pa.int64()))
        lost = {
            (row["sample_id"], row["position"])
            for row in ledger.items(FILTERED.asset, key).select(["sample_id", "position"]).to_pylist()
        }
        places = zip(table["sample_id"].to_pylist(), table["position"].to_pylist(), strict=True)
        dropped.append(np.array([place in lost for place in places], np.bool_))
        vectors += [np.array(table[_EMBEDDING].to_pylist(), np.float64)] if table.num_rows else []
    if not vectors or sum(map(len, vectors)) < 3:
        return None
    every = np.concatenate(vectors)
    every -= every.mean(axis=0)
    sizes, axes = np.linalg.eigh(every.T @ every)
    axes = axes[:, [-1, -2]] * np.where(axes[np.abs(axes[:, [-1, -2]]).argmax(axis=0), [-1, -2]] < 0, -1, 1)
    points = every @ axes
    share = float(sizes[-2:].sum() / (sizes.sum() or 1))
    points /= np.abs(points).max() or 1
    return Cloud(_EMBEDDING, points, np.concatenate(dropped), of, share)


def top(labels: Iterable[str], counts: Mapping[str, int], most: int) -> list[str]:
    """Return the labels with the largest counts, the largest first."""
    return sorted(labels, key=lambda label: (-counts[label], label))[:most]


_MONTH: Final = r"^(?P<year>(?:19|20)\d\d)-?(?P<month>0[1-9]|1[0-2])"


def _sources_of(uri: str, scores_uri: str | None) -> Sources:
    """Return where the rows of a Parquet file of ours are from; no image is read.

    Args:
        uri: the file.
        scores_uri: the scores of its images; None if there are none of these very rows.
    """
    partition, reader = Partition(uri, (uri,)), InterleavedParquetReader(())
    schema = reader.open(partition).schema
    domain, fetched = (text_column(schema, names) for names in (LABELS[DOMAINS], FETCHED))
    opt_outs = [name for name in schema.names if plain_name(name) in OPT_OUTS]
    sizes = None if scores_uri is None else read_small_table(scores_uri, _IMAGE_SIZE)
    columns = {what: {name} for what, name in ((DOMAINS, domain), ("fetched", fetched)) if name is not None}
    found = Sources(columns=columns, opt_outs={name: Counter() for name in opt_outs})
    names = ["sample_id", "position", "modality", "text_content", domain, fetched, *opt_outs]
    _, tables = reader.project(partition, list(dict.fromkeys(filter(None, names))))
    for table in tables:
        found.merge(_sources_in(table, domain, fetched, opt_outs, sizes))
    return found


_IMAGE_SIZE: Final = ["sample_id", "position", "byte_size"]
_AMOUNTS: Final = pa.schema([("sample_id", pa.string()), ("nbytes", pa.int64())])


def _sources_in(
    table: pa.Table, domain: str | None, fetched: str | None, opt_outs: Sequence[str], sizes: pa.Table | None
) -> Sources:
    part = Sources(opt_outs={name: Counter() for name in opt_outs})
    texts = table["text_content"].filter(pc.equal(table["modality"], "text"))
    words = pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts.drop_null())))
    part.words = (pc.sum(words).as_py() or 0) - (
        pc.sum(pc.equal(pc.utf8_trim_whitespace(texts), "")).as_py() or 0
    )
    nbytes = pc.fill_null(pc.binary_length(table["text_content"].cast(pa.large_string())), 0)
    amounts = [pa.table([table["sample_id"], nbytes], _AMOUNTS)]
    images = table.filter(pc.equal(table["modality"], "image")).select(["sample_id", "position"])
    if sizes is None:
        part.unsized = images.num_rows
    elif images.num_rows:
        sized = images.join(sizes, ["sample_id", "position"], join_type="left outer")
        part.unsized = sized["byte_size"].null_count
        of_images = pc.fill_null(sized["byte_size"].cast(pa.int64()), 0)
        amounts.append(pa.table([sized["sample_id"], of_images], _AMOUNTS))
    documents = table.filter(pc.equal(table["position"], -1))
    hosts = (
        pa.nulls(documents.num_rows, pa.string()) if domain is None else hosts_of(as_text(documents[domain]))
    )
    labelled = pa.table({"sample_id": documents["sample_id"], "domain": pc.fill_null(hosts, "")})
    sums = pa.concat_tables(amounts).group_by("sample_id").aggregate([("nbytes", "sum")])
    joined = sums.join(labelled, "sample_id", join_type="left outer")
    groups = joined.group_by("domain").aggregate([("nbytes_sum", "sum"), ("sample_id", "count")])
    for group in groups.to_pylist():
        part.nbytes[group["domain"] or ""] += group["nbytes_sum_sum"]
        part.documents[group["domain"] or ""] += group["sample_id_count"]
    if fetched is not None:
        dates = pc.extract_regex(as_text(documents[fetched]), _MONTH)
        year, month = (pc.struct_field(dates, name) for name in ("year", "month"))
        ends = pc.min_max(pc.binary_join_element_wise(year, month, "-")).as_py()
        part.months = None if ends["min"] is None else (ends["min"], ends["max"])
    for name in opt_outs:
        column = table.schema.field(name)
        values = documents[name] if pa.types.is_string(column.type) else to_json_text(documents[name], column)
        for entry in pc.value_counts(values.drop_null()).to_pylist():
            part.opt_outs[name][entry["values"][:LONGEST_LABEL]] += entry["counts"]
    return part


def gather_sources(root: str, progress: Callable[[int, int], None] = lambda done, of: None) -> Sources:
    """Return where the data below a storage root are from: what the filters keep, else all curated rows."""
    ledger = Ledger(root)
    records = {
        asset: ledger.records(asset, ledger.named(asset)) for asset in (CURATED.asset, FILTERED.asset, IMAGES)
    }
    output = FILTERED if records[FILTERED.asset] else CURATED
    keys = sorted(records[output.asset])
    found = Sources(output.asset)
    found.erasures = len(ErasureStore(root).stamps())

    def of_shard(key: str) -> Sources:
        name = f"{partition_filename(key)}.parquet"
        has_scores = is_current(records, IMAGES, key)
        scores = join(root, DERIVED_FOLDERS[IMAGES], name) if has_scores else None
        return _sources_of(join(root, output.folder, name), scores)

    with ThreadPoolExecutor(_THREADS) as pool:
        for done, (key, part) in enumerate(zip(keys, pool.map(of_shard, keys), strict=True), start=1):
            found.merge(part)
            folder = posixpath.dirname(key)
            written = Amounts.written(records[output.asset][key])
            found.sets[folder] = found.sets.get(folder, NOTHING) + written
            progress(done, len(keys))
    return found


def summary(report: Report) -> str:
    """Return the figures in two sentences."""
    curated = report.stages[CURATED.asset]
    filtered = report.stages.get(FILTERED.asset)
    shards = counted_in_thousands(report.raw_shards, "raw shard")
    lost = sum(curated.lost.values(), NOTHING).items
    quarantined = f"{counted_in_thousands(lost, 'item')} in quarantine{unknown_items(report)}"
    words = f"{in_words(curated.written)} from {shards}, {quarantined}."
    if filtered is not None:
        words += f" The filters keep {in_words(filtered.written)}."
    return words


def unknown_items(report: Report) -> str:
    """Return what no figure can count, as the end of a sentence."""
    if not report.damaged_shards:
        return ""
    return f", and an unknown number behind damage in {counted_in_thousands(report.damaged_shards, 'shard')}"


def in_words(amounts: Amounts) -> str:
    samples, texts, images = (
        counted_in_thousands(number, one)
        for number, one in ((amounts.samples, "sample"), (amounts.texts, "text"), (amounts.images, "image"))
    )
    return f"{samples} with {texts} and {images} of {byte_size(amounts.nbytes)}"
