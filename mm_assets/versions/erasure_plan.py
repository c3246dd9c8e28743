"""Plans of erasures: what a request names, where it is, and why it cannot go, before anything is written.

`entry_of`, `entries_in` and `entries_of_image` read what a request names. `plan` finds it in a storage,
`with_raw` in raw tars, too. `refuse_absent` and `refuse_listed` raise where it could not be erased.
"""

from __future__ import annotations

import csv
import hashlib
import io
import posixpath
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import (
    ACCOUNTS_FOLDER,
    BY_ASSET,
    CURATED,
    DERIVED_FOLDERS,
    FILTERED,
    LANCE,
    LEDGER_FOLDER,
    TARS,
    TRAINING_FOLDER,
    statistics_folder,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.erasures import PDQ, SHA256, URL, Denial, DenyList, Entry, Erasure, ErasureStore
from mm_assets.accounting.needles import IMAGE, Needles
from mm_assets.accounting.scan import scan
from mm_assets.accounting.traces import (
    Found,
    FoundSample,
    RawDocuments,
    find,
    rows_denied,
    stale_outputs,
    without_shared,
)
from mm_assets.filters import Filter
from mm_assets.filters.duplicates import ASSET as DUPLICATES
from mm_assets.filters.id_list import HASH_DIGITS, SAMPLE_ID, IdFilter, IdList
from mm_assets.filters.known_hashes import DEFAULT_RADIUS
from mm_assets.filters.measure import LEAST_QUALITY, ImageContent
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.formats.batching import SampleIds
from mm_assets.formats.images import probe
from mm_assets.formats.names import PLAN_FILE, TAR_SUFFIXES, partition_filename
from mm_assets.formats.parquet import UNREADABLE, read_small_table
from mm_assets.formats.partitions import id_prefix
from mm_assets.formats.raw_shards import RawShard
from mm_assets.formats.registry import reader_for
from mm_assets.formats.webdataset import MAX_MEMBER_BYTES, VIRTUAL_SCHEMES, RawLayout
from mm_assets.formats.webdataset.reader import WebdatasetSource
from mm_assets.model.errors import (
    ERASED,
    ImageError,
    MissingExtra,
    MmAssetsError,
    counted,
    require,
    warn_user,
)
from mm_assets.model.json_codec import json_value
from mm_assets.pool import MapsJobs, WorkerFailure
from mm_assets.storage.errors import located
from mm_assets.storage.files import exists, is_remote, join, open_binary, size_of
from mm_assets.storage.listing import expand_paths
from mm_assets.storage.stamps import files_in
from mm_assets.training_set.proof import training_state
from mm_assets.versions.publishing import published_to
from mm_assets.versions.tagging import tags_holding

_COMPARED: Final = 100_000  # ids
_AT_ONCE: Final = 32 << 20  # bytes of rows
# Files on a shard that name samples of other shards: verdicts on duplicates, and what was dropped by them.
_NAMING_OTHERS: Final = (f"{LEDGER_FOLDER}/statistics", f"{LEDGER_FOLDER}/{ACCOUNTS_FOLDER}/{FILTERED.asset}")


class NotErasedError(MmAssetsError, ValueError):
    """An erasure that cannot be carried out as it was asked for; the message says what to do."""


def entries_in(uri: str) -> list[Entry]:
    """Return the entries that a file lists by ``kind``, ``value`` and maybe ``radius``.

    It has these columns as Parquet, JSON lines or CSV.

    Raises:
        ValueError: naming file, row and what is wrong.
        OSError: it cannot be read.
    """
    with located(uri), open_binary(uri) as file:
        data = file.read()
    entries = []
    for number, row in enumerate(_rows(uri, data), start=1):
        try:
            entries.append(_entry_in(row))
        except ValueError as error:
            raise NotErasedError(f"{uri}: row {number}: {error}") from error
    return entries


def _entry_in(row: Mapping[Any, Any]) -> Entry:
    if None in row:  # cells of CSV
        raise ValueError("has more cells than there are columns")
    for name in ("kind", "value"):
        if name not in row:
            raise ValueError(f"no {name!r}")
        if not isinstance(row[name], str):
            raise ValueError(f"{name} is {row[name]!r:.100}, not a text")
    radius = row.get("radius")
    if radius in (None, ""):
        radius = DEFAULT_RADIUS
    elif not str(radius).isdecimal():
        raise ValueError(f"radius is {radius!r:.100}, not a number of bits")
    return Entry.of(row["kind"], row["value"], int(radius))


def _rows(uri: str, data: bytes) -> Iterator[Mapping[Any, Any]]:
    suffix = posixpath.splitext(uri.partition("?")[0])[1].lower()
    if suffix == ".parquet":
        try:
            yield from pq.read_table(pa.BufferReader(data)).to_pylist()
        except UNREADABLE as error:
            raise NotErasedError(f"{uri}: not a readable Parquet file: {error}") from error
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotErasedError(f"{uri}: not UTF-8: {error}") from error
    if suffix in (".jsonl", ".json", ".ndjson"):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                if not isinstance(row := json_value(line), dict):
                    raise NotErasedError(f"{uri}: line {number}: no JSON object")
                yield row
        return
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise NotErasedError(f"{uri}: line {reader.reader.line_num}: no CSV: {error}") from error


def entry_of(kind: str, given: str) -> Entry:
    """Return the entry that a flag states; of PDQ a radius may follow behind a colon.

    Raises:
        ValueError: it states none.
    """
    value, colon, radius = given.partition(":") if kind == PDQ else (given, "", "")
    if colon and not radius.isdecimal():
        raise ValueError(f"{kind}: {given!r:.100}: the radius is a number of bits")
    return Entry.of(kind, value, int(radius) if colon else DEFAULT_RADIUS)


def entries_of_image(uri: str) -> list[Entry]:
    """Return the entries of an image in a file: of its bytes, and, with the extra ``scores``, of its looks.

    Raises:
        ValueError: it is no image.
        OSError: it cannot be read.
    """
    with located(uri), open_binary(uri) as file:
        data = file.read()
    try:
        info = probe(data)
    except ImageError as error:
        raise NotErasedError(f"{uri}: {error}") from error
    of_bytes = Entry.of(SHA256, hashlib.sha256(data).hexdigest())
    try:
        require("pdqhash", "cv2")
        hash_, quality = ImageContent(memoryview(data), info, MAX_PIXELS).perceptual
        why_not = "" if quality >= LEAST_QUALITY else "it has hardly any detail"
    except (ImageError, MissingExtra) as error:
        hash_, why_not = "", str(error)
    if not why_not:
        return [of_bytes, Entry.of(PDQ, hash_)]
    warn_user(f"{uri}: its very bytes are looked for, not what looks like it: {why_not}")
    return [of_bytes]


@dataclass(frozen=True)
class Places:
    """Folders that are scanned.

    Attributes:
        names: by folder what stands for it: its path below the storage root, or its own elsewhere.
    """

    names: Mapping[str, str]

    @classmethod
    def of(cls, root: str, home: str = "", parts: Sequence[str] = ("",)) -> Places:
        """Return those of a storage root, or of parts of it, and of Dagster's home."""
        names = {join(root, part) if part else root: part for part in parts}
        return cls(names | ({home: home} if home else {}))

    def shown(self, path: str) -> str:
        """Return what stands for a file in them."""
        folder = max((each for each in self.names if path.startswith(f"{each}/")), key=len)
        return posixpath.join(self.names[folder], path.removeprefix(f"{folder}/"))


@dataclass(frozen=True)
class Plan:
    """What an erasure concerns, before anything is written.

    Attributes:
        found: samples, and what they are found by.
        partitions: shards to rebuild, with the number of rows that hold it.
        samples: ids of the samples that go as wholes.
        assets: assets of the graph that have outputs of these shards.
        tags: our tags that hold it; ``table_tags`` are further tags of the table.
        holds_set: whether the training set has it.
        published: where outputs were published to.
        places: how many files hold it, by their folder.
        present: all shards that anything is known of now; others are retired.
    """

    found: Found
    partitions: Mapping[str, int]
    samples: Sequence[str] = ()
    assets: Sequence[str] = ()
    tags: Sequence[str] = ()
    table_tags: Sequence[str] = ()
    holds_set: bool = False
    published: Sequence[str] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    present: Collection[str] = ()


def plan(
    root: str,
    entries: Sequence[Entry],
    pool: MapsJobs,
    raw: RawDocuments,
    *,
    is_whole: bool,
    home: str = "",
    known: Needles | None = None,
) -> Plan:
    """Find what some entries mean, and where it is: in all outputs, and in earlier versions of the table.

    Ids and URLs that were given are looked for as they are, too, whatever is found.

    Args:
        root: storage root.
        entries: what to erase.
        pool: does the work.
        raw: the raw shards.
        is_whole: whether all files are looked through, also those that are rebuilt anyway.
        home: Dagster's home, which is then looked through, too.
        known: what an earlier plan has found it by.
    """
    deny = DenyList.of([Erasure.begin(entries)])
    if is_remote(root):
        import lance  # noqa: F401 (its client then reads the accounts)
    states: set[tuple[str, str, str]] = set()
    stale = stale_outputs(root, states=states)
    in_set = _find_in_files(_set_files(root, deny, stale), deny, pool)
    in_table = _find_in_files(_table_files(root, stale), deny, pool)
    everywhere = [find(root, deny, pool, stale=stale, raw=raw), in_table, in_set]
    urls, ids = ([e.given for e in entries if e.kind == kind and e.given] for kind in (URL, SAMPLE_ID))
    by = [Needles.of_values(urls, ids), *(found.needles for found in everywhere)]
    if known is not None:
        by.append(replace(known, omitted={}))
    found = Found.of((sample for each in everywhere for sample in each.samples), by)
    needles = without_shared(root, found, pool)
    if IMAGE not in found.needles.counts():
        of_none = Counter(f"{entry.kind}, of no image here" for entry in entries if entry.kind in HASH_DIGITS)
        needles = replace(needles, omitted={**needles.omitted, **of_none})
    found = replace(found, needles=needles)
    has_verdicts = exists(join(statistics_folder(root), DUPLICATES))
    parts = _NAMING_OTHERS if has_verdicts else ()
    places = Places.of(root, home) if is_whole else Places.of(root, parts=parts)
    paths = [places.shown(path) for path in scan(places.names, needles, pool).paths()]
    ledger = Ledger(root)
    by_name = {partition_filename(name): name for asset in BY_ASSET for name in ledger.named(asset)}
    earlier = _earlier(root, entries)
    partitions = {**dict.fromkeys(earlier, 0), **found.rows()}
    partitions.pop("", None)  # rows that nothing says the shard of
    for name in shards_named(paths, by_name):
        partitions.setdefault(name, 0)
    whole = sorted({sample.sample_id for sample in found.samples if sample.is_whole} & needles.ids)
    tags, table_tags = tags_holding(root, found, partitions, deny, states)
    named = {asset: set(ledger.named(asset)) for asset in (*BY_ASSET, *DERIVED_FOLDERS)}
    return Plan(
        found,
        dict(sorted(partitions.items())),
        whole,
        [asset for asset, names in named.items() if not names.isdisjoint(partitions)],
        tags,
        table_tags,
        bool(in_set.samples) or _is_in_set(root, found),
        published_to(root),
        _by_folder(paths, home),
        frozenset(stale),
    )


@dataclass(frozen=True)
class _FileJob:
    """A file with rows: of the table, where only earlier versions may have them, or of the training set."""

    kind: str
    uri: str
    partition: str
    deny: DenyList

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        if self.kind != LANCE.kind:
            yield from (batch.data for batch in reader_for(self.kind, self.uri, max_batch_bytes=_AT_ONCE))
            return
        from lance.file import LanceFileReader

        from mm_assets.formats.lance.reader_writer import lance_options

        options = lance_options(self.uri, None)
        reader = LanceFileReader(self.uri, options)
        if SAMPLE_ID not in reader.metadata().schema.names:  # columns that were added to other files
            return
        rows = reader.num_rows()
        at_once = max(1, rows if columns else _AT_ONCE * rows // max(size_of(self.uri), 1))
        reader = LanceFileReader(self.uri, options, columns) if columns else reader
        for start in range(0, rows, at_once):
            yield reader.read_range(start, min(at_once, rows - start)).to_table()


def _find_in_files(jobs: Iterable[_FileJob], deny: DenyList, pool: MapsJobs) -> Found:
    found = []
    for job, result in pool.map(_find_in_file, [replace(job, deny=deny) for job in jobs]):
        if isinstance(result, WorkerFailure):
            raise OSError(result.at(job.uri))
        found.append(result)
    samples = (sample for each in found for sample in each.samples)
    return Found.of(samples, (each.needles for each in found))


def _find_in_file(job: _FileJob) -> Found:
    """Find samples; ids first, where only they are looked for."""
    is_by_id = all(entry.kind == SAMPLE_ID for entry in job.deny.entries)
    gone: set[str] = set()
    is_in = False
    for table in job.tables([SAMPLE_ID] if is_by_id else None):
        denials = job.deny.denials(table, ())
        is_in |= bool(denials)
        ids = table.column(SAMPLE_ID)
        gone.update(ids[row].as_py() for row, denial in denials.items() if denial.is_of_sample)
    # A sample may go on in the next table.
    whole = {Entry.of(SAMPLE_ID, sample_id): Denial(ERASED, "", is_of_sample=True) for sample_id in gone}
    deny = DenyList({**job.deny.entries, **whole})
    needles, samples = [], []
    for table in job.tables() if is_in else ():
        for rows, is_whole in rows_denied(table, deny.denials(table, ())):
            needles.append(Needles.of(rows, is_whole=is_whole))
            for row in rows.select([SAMPLE_ID, "position", "modality"]).to_pylist():
                samples.append(FoundSample.of_row(job.partition, row, is_whole=is_whole, is_past=True))
    return Found.of(samples, needles)


def _table_files(root: str, stale: Mapping[str, Collection[str]]) -> Iterator[_FileJob]:
    """Yield the data files of the table that may have other rows than the curated outputs."""
    uri = LANCE.place(root, "")
    if not exists(join(uri, "_versions")):
        return
    from mm_assets.formats.lance import Location
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.records import PartitionRecords
    from mm_assets.formats.lance.table import DATA

    records = PartitionRecords(Location(uri, lance_options(uri, None))).all()
    owners = {path: name for name, each in records.items() for one in each for path in one.data_files}
    # Of several records one may be of earlier rows.
    sure = {
        path
        for name, each in records.items()
        if len(each) == 1 and name in stale and LANCE.asset not in stale[name]
        for path in each[0].data_files
    }
    for name in files_in(join(uri, DATA), suffix=".lance"):
        if name not in sure:
            yield _FileJob(LANCE.kind, join(uri, DATA, name), owners.get(name, ""), DenyList())


def _set_files(root: str, deny: DenyList, stale: Mapping[str, Collection[str]]) -> Iterator[_FileJob]:
    """Yield the tars of a training set that may have other rows than the curated outputs."""
    folder = join(root, TRAINING_FOLDER)
    is_stale = any(TARS.asset in assets for assets in stale.values())
    if not exists(folder) or (not is_stale and training_state(root) == "current"):
        return
    plan_file = join(folder, PLAN_FILE)
    if exists(plan_file) and all(entry.kind == SAMPLE_ID for entry in deny.entries):
        ids = read_small_table(plan_file, [SAMPLE_ID]).column(0).unique().to_pylist()
        if not any(map(deny.hides_sample, ids)):
            return
    with suppress(FileNotFoundError):
        for uri in expand_paths(folder, TAR_SUFFIXES):
            yield _FileJob(TARS.kind, uri, "", DenyList())


def shards_named(paths: Iterable[str], by_name: Mapping[str, str]) -> list[str]:
    """Return the shards that files of the ledger are of, by their paths below the root.

    Args:
        by_name: shards by the names of their files.
    """
    names = [posixpath.splitext(posixpath.basename(p))[0] for p in paths if p.startswith(f"{LEDGER_FOLDER}/")]
    return list(dict.fromkeys(by_name[name] for name in names if name in by_name))


def _earlier(root: str, entries: Sequence[Entry]) -> set[str]:
    """Return the shards of which the same was erased before: their raw shards may have it still."""
    wanted = set(entries)
    return {
        partition
        for erasure in ErasureStore(root).all()
        if not wanted.isdisjoint(erasure.entries)
        for partition in erasure.partitions
    }


def _by_folder(paths: Sequence[str], home: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for path in paths:
        is_home = bool(home) and path.startswith(f"{home}/")
        counts["Dagster's home" if is_home else "/".join(path.split("/")[:-1][:2]) or path] += 1
    return dict(sorted(counts.items()))


def _is_in_set(root: str, found: Found) -> bool:
    uri = join(root, TRAINING_FOLDER, PLAN_FILE)
    if not exists(uri):
        return False
    ids = pa.array([sample.sample_id for sample in found.samples], pa.string())
    column = read_small_table(uri, ["sample_id"]).column(0)
    return bool(pc.any(pc.is_in(column, value_set=ids)).as_py())


def with_raw(plan: Plan, entries: Sequence[Entry], shards: Mapping[str, RawShard], layout: RawLayout) -> Plan:
    """Return the plan of an erasure that rewrites raw tars, with the samples that entries mean in these.

    Outputs may have them no more, such as after an erasure that left raw tars alone.

    Raises:
        NotErasedError: a raw shard cannot be written without them; it names the file or the sample, and what
            to do.
    """
    deny = DenyList.of([Erasure.begin(entries)])
    whole = set(plan.samples)
    for partition in plan.partitions:
        present = [s for s in plan.found.samples if s.partition == partition and not s.is_past]
        in_part = {sample.sample_id for sample in present if not sample.is_whole}
        for file in raw_files(partition, shards):
            if not is_raw_tar(file):
                raise NotErasedError(
                    f"{file}: --raw rewrites tars alone: take it out yourself, and leave --raw out"
                )
            prefix = id_prefix(layout.sample_id_prefix, partition, shards[partition].files, file)
            with closing(
                WebdatasetSource(file, layout, file, True, None, MAX_MEMBER_BYTES, SampleIds(), prefix)
            ) as source:
                for table in source.tables(source.schema.names, _AT_ONCE):
                    ids = table.column("sample_id").to_pylist()
                    for row, denial in deny.denials(table, ()).items():
                        (whole if denial.is_of_sample else in_part).add(ids[row])
        if items := sorted(in_part - whole):
            raise NotErasedError(
                f"shard {partition!r}: sample {items[0]!r:.200}: only items of it are erased, and --raw "
                "takes whole samples out: erase it by --sample-id, or leave --raw out"
            )
    return replace(plan, samples=sorted(whole))


def reasons_of(root: str, plan: Plan, entries: Sequence[Entry]) -> dict[str, str]:
    """Return why a plan has each of its shards."""
    earlier = _earlier(root, entries)
    other = {name: "erased before" if name in earlier else "its ledger names it" for name in plan.partitions}
    return {name: counted(rows, "row") if rows else other[name] for name, rows in plan.partitions.items()}


def near_ids(root: str, entries: Iterable[Entry]) -> str:
    """Return words on the ids that are most like those given."""
    given = [entry.given for entry in entries if entry.kind == SAMPLE_ID and entry.given]
    known: set[str] = set()
    for name in Ledger(root).named(CURATED.asset) if given else ():
        with suppress(FileNotFoundError):
            known.update(read_small_table(CURATED.uri(root, name), [SAMPLE_ID]).column(0).to_pylist())
        if len(known) > _COMPARED:
            break
    near = dict.fromkeys(each for one in given for each in get_close_matches(one, known, n=1))
    return f"; the nearest id is {', '.join(map(repr, near))}" if near else ""


def raw_files(partition: str, shards: Mapping[str, RawShard]) -> tuple[str, ...]:
    """Return the raw files of a shard that are there."""
    return () if absence_of(partition, shards) else shards[partition].files


def documents_of(shards: Mapping[str, RawShard], layout: Mapping[str, Any]) -> RawDocuments:
    """Return the raw shards for `plan`."""
    return RawDocuments({name: shard.files for name, shard in shards.items()}, layout)


def is_raw_tar(file: str) -> bool:
    """Return whether a raw file is a tar, which can be written without a sample."""
    return not file.startswith(VIRTUAL_SCHEMES) and file.lower().endswith(TAR_SUFFIXES)


def refuse_listed(plan: Plan, filters: Iterable[Filter[Any]]) -> None:
    """Raise where a list of ids that filters read names a sample: the storage would get a copy again.

    Raises:
        NotErasedError: naming the list and the sample.
        ValueError: a list cannot be used.
    """
    ids = pa.array(plan.samples, pa.string())
    for each in (
        each for judge in filters if isinstance(judge, IdFilter) for each in IdList.all_of(judge.files)
    ):
        if SAMPLE_ID in each.columns:
            column = each.read().column(SAMPLE_ID)
            if named := column.filter(pc.is_in(column, value_set=ids)).to_pylist():
                raise NotErasedError(
                    f"{each.uri}: names sample {named[0]!r:.200}: take it out of the list, and erase again: "
                    "without the list it is refused, too"
                )


def refuse_absent(plan: Plan, shards: Mapping[str, RawShard]) -> None:
    """Raise where a shard with outputs cannot be rebuilt, as its raw shard is not there.

    Raises:
        NotErasedError: naming it, and what to do.
    """
    absent = {name: absence_of(name, shards) for name in plan.partitions if name in plan.present}
    if why := {name: absence for name, absence in absent.items() if absence}:
        several = "; ".join(f"shard {name!r}: {absence}" for name, absence in why.items())
        raise NotErasedError(
            f"{several}: put it back, or remove the outputs (mm-assets retire {shlex.join(why)}); then erase "
            "again: nothing was changed"
        )


def absence_of(partition: str, shards: Mapping[str, RawShard]) -> str:
    """Return why the raw shard of a partition cannot be read; empty: it is there."""
    if partition not in shards:
        return "no raw shard of it in MM_RAW_SHARDS"
    files = [file for file in shards[partition].files if not file.startswith(VIRTUAL_SCHEMES)]
    return next((f"its raw shard {file} does not exist" for file in files if not exists(file)), "")


def stamps_of(root: str) -> Mapping[str, Any]:
    """Return what changes whenever an output of a storage root, or its account, is another."""
    folders = [Ledger(root).folder(asset) for asset in (*BY_ASSET, *DERIVED_FOLDERS)]
    return {folder: files_in(folder) for folder in [*folders, join(root, LEDGER_FOLDER)]}
