"""Erasure of what a request names from all that lies below a storage root, and the proof that it is gone.

`begin` writes an erasure that is planned, `Erasing` takes it from its first step to its certificate. Each
step may be repeated: after a crash the same steps are taken again, and those with nothing to do are short.

1. Raw tars are rewritten without the samples, if that was asked for.
2. The graph rebuilds the shards that hold it, as the deny list in force says.
3. What a run leaves is purged: tags that hold it, earlier versions of the table and its indexes, surveys,
   temporary files of dead processes, the event log, the page of the report.
4. Every file is scanned. Files that are made again where they are missing are removed, if it is in them.
5. The work file, which has content, is removed; the erasure is finished, and is the certificate.
"""

from __future__ import annotations

import gzip
import json
import os
import posixpath
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from mm_assets.accounting import CACHE, LANCE, TRAINING, statistics_folder
from mm_assets.accounting.erasures import MD5, SHA256, WORK, DenyList, Entry, Erasure, ErasureStore, alias_of
from mm_assets.accounting.needles import Needles
from mm_assets.accounting.retirement import Retirement
from mm_assets.accounting.scan import scan
from mm_assets.accounting.survey_store import scrub_surveys
from mm_assets.filters.duplicates import retire_verdicts
from mm_assets.formats.batching import SampleIds
from mm_assets.formats.names import partition_filename
from mm_assets.formats.partitions import id_prefix
from mm_assets.formats.raw_shards import RawShard
from mm_assets.formats.tar import TarDamage, copy_without
from mm_assets.formats.webdataset import RawLayout
from mm_assets.formats.webdataset.samples import TarSamples
from mm_assets.model.errors import counted, first_and_more
from mm_assets.pool import MapsJobs
from mm_assets.storage.files import (
    exists,
    filesystem,
    is_remote,
    is_s3,
    join,
    local_path,
    open_binary,
    read_bytes,
    remove,
    staged,
    sweep,
)
from mm_assets.storage.stamps import files_in, remove_all
from mm_assets.versions import FOLDER
from mm_assets.versions.erasure_plan import (
    NotErasedError,
    Places,
    Plan,
    absence_of,
    raw_files,
    shards_named,
)
from mm_assets.versions.publishing import published_to
from mm_assets.versions.tagging import Manifest, drop_tag, header_uri, tag_names

REPORT_PAGE: Final = "report/index.html"
_GZIP: Final = b"\x1f\x8b"
# Files that are made again when they are missed, or that nobody misses, by folders below the storage root.
_MADE_AGAIN: Final = (
    *("ledger/index/", "ledger/lists/", "versions/losses/", "versions/samples/"),
    f"{LANCE.folder}/_mm_assets/record_index/",
)
_OUT_OF_SCOPE: Final = (
    "backups, replicas and copies that no record names",
    "thumbnails and scores of other copies of an image: a scan for its bytes cannot know them",
)


@dataclass(frozen=True)
class Work:
    """What an unfinished erasure needs to go on. It has content.

    Attributes:
        needles: what the scan looks for.
        samples: ids of samples that go as wholes.
        assets: to rebuild.
        tags: to drop.
        table_tags: tags of the table to drop.
        rebuilds_set: whether the training set is rebuilt.
        has_raw: whether raw tars are written without it.
    """

    needles: Needles
    samples: Sequence[str]
    assets: Sequence[str]
    tags: Sequence[str]
    table_tags: Sequence[str]
    rebuilds_set: bool
    has_raw: bool

    def to_bytes(self) -> bytes:
        """Return it as bytes, for `of_bytes`."""
        return json.dumps({**vars(self), "needles": self.needles.to_bytes().decode()}).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> Work:
        """Return what `to_bytes` was made of."""
        fields = json.loads(data)
        return cls(**{**fields, "needles": Needles.of_bytes(fields["needles"].encode())})


def begin(store: ErasureStore, entries: Sequence[Entry], plan: Plan, *, has_raw: bool) -> Erasure:
    """Write an erasure that is planned. From then on the deny list is in force."""
    going_on = {f"{erasure.id}{WORK}" for erasure in store.unfinished()}
    for name in files_in(store.folder, suffix=WORK):
        if name not in going_on:  # one that was killed before it was written
            remove(join(store.folder, name))
    return planned(store, Erasure.begin(entries), plan, Work(Needles(), (), (), (), (), False, has_raw))


def work_of(store: ErasureStore, erasure: Erasure) -> Work | None:
    """Return what an unfinished erasure goes on with; None if its work file is gone."""
    data = store.read_work(erasure.id)
    return None if data is None else Work.of_bytes(data)


def planned(store: ErasureStore, erasure: Erasure, plan: Plan, work: Work) -> Erasure:
    """Write an erasure, and its work, with what a plan adds to them. The needles are those of the plan."""
    partitions = {
        name: max(plan.partitions.get(name, 0), erasure.partitions.get(name, 0))
        for name in sorted({*plan.partitions, *erasure.partitions})
    }
    known, samples = erasure.found, {(sample.partition, sample.sample_id) for sample in plan.found.samples}
    owned = {sample_id for partition, sample_id in samples if partition}
    samples -= {("", sample_id) for sample_id in owned}  # earlier states of these
    tags, table_tags = _union(work.tags, plan.tags), _union(work.table_tags, plan.table_tags)
    found = {
        "samples": max(known.get("samples", 0), len(samples)),
        "rows": sum(partitions.values()),
        "tags": [*tags, *table_tags],
        "published": _union(known.get("published", ()), plan.published),
        "files": {**plan.places, **known.get("files", {})},
    }
    erasure = replace(erasure, partitions=partitions, found=found)
    work = Work(
        plan.found.needles,
        _union(work.samples, plan.samples),
        _union(work.assets, plan.assets),
        tags,
        table_tags,
        work.rebuilds_set or plan.holds_set,
        work.has_raw,
    )
    store.write_work(erasure.id, work.to_bytes())
    store.write(erasure)
    return erasure


def _union(known: Iterable[str], others: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*known, *others]))


@dataclass(frozen=True)
class Orchestrator:
    """What an erasure asks of the orchestrator.

    Attributes:
        home: its folder; empty for none.
        refuse_unfinished: raises where a run or a backfill is unfinished.
        rebuild: rebuilds shards in some assets; of none, assets without partitions. Returns those that fail.
        erase_events: takes partitions, whether a text is a trace, aliases by sample id, what stands for texts
            that go, and the time since when no event can quote it; returns how much was changed.
        texts: texts of databases that are no files, with their places.
    """

    home: str
    refuse_unfinished: Callable[[], None]
    rebuild: Callable[[Sequence[str], Sequence[str]], Collection[str]]
    erase_events: Callable[[Collection[str], Callable[[str], bool], Mapping[str, str], str, float], int]
    texts: Callable[[], Iterable[tuple[str, str]]]


class Erasing:
    """One erasure on its way.

    Args:
        root: storage root, a folder or URL.
        erasure: one that is not finished.
        orchestrator: rebuilds shards.
        pool: does the scan.
        shards: the raw shards.
        layout: how raw tars are read.

    Raises:
        NotErasedError: its work file is gone.
    """

    def __init__(
        self,
        root: str,
        erasure: Erasure,
        orchestrator: Orchestrator,
        pool: MapsJobs,
        shards: Mapping[str, RawShard],
        layout: RawLayout,
    ) -> None:
        self._root, self._graph, self._pool = root, orchestrator, pool
        self._shards, self._layout = shards, layout
        self._store = ErasureStore(root)
        self.erasure = erasure
        self._work = work_of(self._store, erasure)
        if self._work is None and not self._is_scanned:
            raise NotErasedError(
                f"{self._store.folder}: the work file of erasure {erasure.id} is gone, and with it what to "
                f"look for: remove {erasure.id}.json and erase again"
            )

    @property
    def _is_scanned(self) -> bool:
        return bool(self.erasure.scan) and not self.erasure.scan["occurrences"]

    def run(self) -> Iterator[str]:
        """Take all steps; may be repeated after a crash.

        Yields:
            A line for each step that is done.
        """
        if self._work is not None:
            yield from self._erase(self._work)
        if self._is_scanned:
            self._store.remove_work(self.erasure.id)
            self._write(finished=_now())
            yield f"finished: {self._store.folder}/{self.erasure.id}.json"

    def _erase(self, work: Work) -> Iterator[str]:
        partitions = list(self.erasure.partitions)
        if work.has_raw:
            for partition in partitions:
                for file in raw_files(partition, self._shards):
                    yield self._rewrite_raw(partition, file, work)
        if partitions:
            retire_verdicts(statistics_folder(self._root), partitions)
            yield from self._rebuild(partitions, work, "rebuilt")
        if work.rebuilds_set:
            self._graph.rebuild([], [TRAINING])
            yield self._told("outputs", [TRAINING], f"rebuilt: {TRAINING}")
        self._graph.refuse_unfinished()  # one that has begun meanwhile
        for step in (self._drop_tags, self._purge_table, self._sweep, self._purge_home):
            yield from step(work)
        yield from self._scan(work)
        while others := self._others():
            self._write(partitions={**self.erasure.partitions, **dict.fromkeys(others, 0)})
            yield from self._rebuild(others, work, "rebuilt, as they name it")
            yield from self._scan(work)

    def _rebuild(self, partitions: Sequence[str], work: Work, what: str) -> Iterator[str]:
        """Rebuild the shards that have outputs; of one that was retired nothing is left.

        Raises:
            NotErasedError: some cannot be rebuilt. No tag or earlier version was touched.
        """
        kept = Retirement(self._root).partitions()
        failed = {name: absence_of(name, self._shards) for name in partitions if name in kept}
        if names := [name for name, absence in failed.items() if not absence]:
            again = self._graph.rebuild(names, work.assets)
            failed |= {name: "it fails, as said above" if name in again else "" for name in names}
        if rebuilt := [name for name in names if not failed[name]]:
            yield self._told("shards", rebuilt, f"{what}: {first_and_more(rebuilt)}")
        if gone := [name for name in partitions if name not in kept]:
            yield self._told("shards without outputs", gone, f"no outputs left: {first_and_more(gone)}")
        if why := {name: reason for name, reason in failed.items() if reason}:
            several = "; ".join(f"shard {name!r}: {reason}" for name, reason in why.items())
            raise NotErasedError(
                f"erasure {self.erasure.id} is unfinished: shards cannot be rebuilt: {several}: mend "
                f"that or remove their outputs (mm-assets retire {shlex.join(why)}); then erase again"
            )

    def _others(self) -> list[str]:
        """Return further shards whose files of the ledger have it."""
        by_name = {partition_filename(name): name for name in self._shards}
        named = shards_named((one["place"] for one in self.erasure.scan["occurrences"]), by_name)
        return [name for name in named if name not in self.erasure.partitions]

    def _told(self, what: str, value: Sequence[str] | int, line: str) -> str:
        """Note what was rebuilt, rewritten or removed, and return the line on it."""
        known = self.erasure.rewritten.get(what)
        if isinstance(value, int):
            self._write(rewritten={**self.erasure.rewritten, what: (known or 0) + value})
        else:
            self._write(rewritten={**self.erasure.rewritten, what: sorted({*(known or ()), *value})})
        return line

    def _write(self, **changes: Any) -> None:
        self.erasure = replace(self.erasure, **changes)
        self._store.write(self.erasure)

    def _rewrite_raw(self, partition: str, file: str, work: Work) -> str:
        deny, ids = DenyList.read(self._root), frozenset(work.samples)
        prefix = id_prefix(self._layout.sample_id_prefix, partition, self._shards[partition].files, file)
        cut = write_without(file, self._layout, prefix, lambda name: name in ids or deny.hides_sample(name))
        if not cut:
            return f"raw shard {file}: no match"
        return self._told("raw shards", [file], f"raw shard {file}: {cut:,} bytes removed")

    def _drop_tags(self, work: Work) -> Iterator[str]:
        there = [name for name in work.tags if exists(header_uri(self._root, name))]
        others = [name for name in tag_names(self._root) if name not in work.tags] if there else []
        kept = {state.losses for name in others for state in Manifest(self._root, name).states()}
        for name in work.tags:
            losses: list[str] = []
            for state in Manifest(self._root, name).states() if name in there else ():
                if state.losses and state.losses not in kept:  # their reasons may quote it
                    losses.append(join(self._root, FOLDER, "losses", f"{state.losses}.parquet"))
            remove_all(losses)
            drop_tag(self._root, name)
            yield self._told("tags", [name], f"tag {name}: dropped")
        uri = LANCE.place(self._root, "")
        if work.table_tags and exists(join(uri, "_versions")):
            from mm_assets.formats.lance.reader_writer import lance_options
            from mm_assets.formats.lance.table import PinnedTable

            table = PinnedTable(uri, lance_options(uri, None))
            for name in work.table_tags:
                table.untag(name)
                yield self._told("tags", [name], f"tag {name} of the table: dropped")

    def _purge_table(self, work: Work) -> Iterator[str]:
        uri = LANCE.place(self._root, "")
        is_held = self.erasure.partitions or self.erasure.found["samples"]
        if not is_held or not exists(join(uri, "_versions")):
            return
        from mm_assets.formats.lance.reader_writer import lance_options
        from mm_assets.formats.lance.table import purge

        report = purge(uri, list(self.erasure.partitions), lance_options(uri, None))
        removed = report.versions_removed
        yield self._told(
            "versions of the table", removed, f"{LANCE.folder}: {removed} earlier versions removed"
        )

    def _sweep(self, work: Work) -> Iterator[str]:
        """Remove the temporary files of dead processes, and scrub surveys."""
        scrub_surveys(self._root, list(self.erasure.partitions))
        yield "surveys: cleaned"
        removed = 0
        if not is_remote(self._root):
            for folder, _, _ in os.walk(local_path(self._root)):
                removed += len(sweep(folder))
            cache = join(self._root, CACHE.folder)
            if exists(cache):
                from mm_assets.formats.arrow_cache.build import sweep_folders

                sweep_folders(Path(local_path(cache)))
        yield self._told("temporary files", removed, f"temporary files of dead processes: {removed} removed")

    def _purge_home(self, work: Work) -> Iterator[str]:
        aliases = {sample_id: alias_of(sample_id) for sample_id in work.samples}
        begun = datetime.fromisoformat(self.erasure.begun).timestamp()
        partitions = list(self.erasure.partitions)
        digests = [entry.value for entry in self.erasure.entries if entry.kind in (SHA256, MD5)]

        def is_trace(text: str) -> bool:
            return work.needles.is_in(text) or any(digest in text for digest in digests)

        changed = self._graph.erase_events(partitions, is_trace, aliases, self.erasure.reason, begun)
        yield self._told("rows of the event log", changed, f"event log: {changed} rows rewritten")
        page = join(self._root, REPORT_PAGE)
        if exists(page):  # its pictures are small ones, which no scan would know
            remove(page)
            yield self._told("files that are made again", [REPORT_PAGE], f"{REPORT_PAGE}: removed")

    def _scan(self, work: Work) -> Iterator[str]:
        places = Places.of(self._root, self._graph.home)
        own = [join(self._store.folder, name) for name in files_in(self._store.folder, suffix=WORK)]
        found = scan(places.names, work.needles, self._pool, own)
        below = {path: places.shown(path) for path in found.paths()}
        asked = {path for path, name in below.items() if self._holds_only_digests(path, name, work.needles)}
        again = [path for path, name in below.items() if name.startswith(_MADE_AGAIN)]
        for path in again:
            remove(path)
        if again:
            yield self._told(
                "files that are made again",
                [below[path] for path in again],
                f"removed: {first_and_more(again)}",
            )
        left = [
            {"place": below[one.path], "inside": one.inside, "kind": one.kind, "times": times}
            for one, times in found.occurrences.items()
            if one.path not in {*again, *asked}
        ]
        left += [
            {"place": place, "inside": "", "kind": "text", "times": 1}
            for place, text in self._graph.texts()
            if work.needles.is_in(text)
        ]
        left += [
            {"place": path, "inside": reason, "kind": "unreadable", "times": 0}
            for path, reason in found.unread.items()
        ]
        self._write(
            scan={
                "at": _now(),
                "files": found.files,
                "bytes": found.nbytes,
                "occurrences": left,
                "searched_for": dict(found.searched_for),
                "not_searched_for": dict(found.omitted),
                "out_of_scope": self._outside(work),
            }
        )
        matches = counted(len(left), "match", "matches")
        yield f"scanned: {found.files:,} files of {found.nbytes:,} bytes, {matches}"

    def _holds_only_digests(self, path: str, name: str, needles: Needles) -> bool:
        """Return whether a file is a certificate that has no more of it than the digests asked for."""
        folder, file = posixpath.split(name)
        if join(self._root, folder) != self._store.folder or not file.endswith(".json"):
            return False
        entries = self._store.read(file.removesuffix(".json")).entries
        data = read_bytes(path) or b""
        for entry in entries:
            data = data.replace(f'"value": "{entry.value}"'.encode(), b"")
        return not needles.is_in(data.decode(errors="replace"))

    def _outside(self, work: Work) -> list[str]:
        """Return what the scan says nothing of."""
        lines = [
            f"published to {target}: publish again, with --delete" for target in published_to(self._root)
        ]
        if not work.has_raw:
            files = [file for name in self.erasure.partitions for file in raw_files(name, self._shards)]
            lines += [f"raw shard {file} may still have it: ingest blocks it" for file in files]
        roots = {
            self._root,
            *(file for name in self.erasure.partitions for file in raw_files(name, self._shards)),
        }
        buckets = {bucket: state for root in roots for bucket, state in _versioning(root).items()}
        lines += [f"bucket {bucket}: {state}" for bucket, state in sorted(buckets.items())]
        if self._layout.images_from:
            lines.append("images that documents only name (MM_IMAGES_FROM)")
        if not self._graph.home:
            lines.append("the event log: there is no Dagster home here")
        return [*lines, *_OUT_OF_SCOPE]


def write_without(uri: str, layout: RawLayout, prefix: str, is_meant: Callable[[str], bool]) -> int:
    """Write a raw tar without some samples, in one step; return the bytes that were taken out.

    Args:
        uri: path or URL; behind links their target is written.
        layout: how its samples are read.
        prefix: what stands before the ids of its samples.
        is_meant: tells by its id whether a sample goes.

    Raises:
        NotErasedError: it is damaged in such a way that it cannot be copied.
        OSError: it cannot be read or written.
    """
    place = uri if is_remote(uri) else os.path.realpath(local_path(uri))
    try:
        samples = TarSamples(place, place, layout, 1 << 62, SampleIds(), None, prefix)
        with closing(samples):
            ranges = samples.ranges_of(is_meant)
            if not ranges:
                return 0
            with open_binary(place) as file:
                is_packed = file.read(len(_GZIP)) == _GZIP
            with staged(place) as written:
                with open(written.path, "wb") as stream:
                    _copy(samples.descriptor, ranges, stream, is_packed)
                if not is_remote(place):
                    shutil.copymode(place, written.path)
                written.publish()
    except TarDamage as error:
        raise NotErasedError(f"{error}; --raw cannot rewrite it") from error
    return sum(end - start for start, end in ranges)


def _copy(descriptor: int, ranges: Sequence[tuple[int, int]], stream: IO[bytes], is_packed: bool) -> None:
    if not is_packed:
        copy_without(descriptor, ranges, stream)
        return
    with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
        copy_without(descriptor, ranges, packed)  # type: ignore[arg-type]  # it writes, and that is all


def _versioning(uri: str) -> dict[str, str]:
    """Return what is said of a bucket that keeps earlier objects; nothing of one that does not."""
    if not is_remote(uri):
        return {}
    fs, path = filesystem(uri)
    if not is_s3(fs):
        return {}
    bucket = path.partition("/")[0]
    try:
        state = fs.call_s3("get_bucket_versioning", Bucket=bucket).get("Status")
    except (OSError, NotImplementedError) as error:
        return {bucket: f"not known whether it keeps earlier versions of objects: {type(error).__name__}"}
    return (
        {}
        if state is None
        else {bucket: f"keeps earlier versions of objects ({state.lower()}): remove them there"}
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
