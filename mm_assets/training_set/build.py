"""Making of a training set by its plan: byte ranges of samples are copied into new tars, no image is touched.

* `TrainingSet`: the set in a folder; `make` brings it to a plan. Finished shards of the same samples stay,
  so that a run that was ended goes on. The plan's file appears last: without it, a set is not complete.
  Shards that replace others wait in ``.training/next`` until all are there, so that a failure leaves the
  set as it was. In an object store, where nothing can be renamed, they are replaced one by one.
* `ShardJob`, `write_shard`: one shard, in any process. Other formats are written from such a tar, by their
  own writers.

Beside the shards are notes on what each was made of (``.training/<shard>.json``), and the card.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.accounting import digest_files
from mm_assets.formats.arrow_cache import digest_of
from mm_assets.formats.names import PLAN_FILE, SET_NEXT, SET_NOTES, format_of, sample_key
from mm_assets.formats.partitions import Partition
from mm_assets.formats.registry import DEFAULT_BATCH_BYTES, Conversion, reader_for, writer_for
from mm_assets.formats.tar import END_BLOCKS, TarDamage
from mm_assets.formats.webdataset.client_files import TarPartitionStats, tar_idx, union_columns
from mm_assets.formats.webdataset.writer import CARD, TarFolder, measure
from mm_assets.model.errors import DataError, MmAssetsError, ShardError
from mm_assets.pool import MapsJobs, WorkerFailure
from mm_assets.storage.errors import located, readable_store_errors
from mm_assets.storage.files import (
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    publish_bytes,
    read_bytes,
    remove,
    size_of,
    staged,
    sweep_output,
)
from mm_assets.storage.stamps import files_in, parallel_map, sole_writer
from mm_assets.terminal import Progress
from mm_assets.training_set import Range, Scan, Source, SourceTar, changed_tars, copy_ranges, scan_tar
from mm_assets.training_set.plan import (
    Recipe,
    in_slices,
    make_plan,
    plain_card,
    set_notes,
    shard_name,
    split_of,
)

_TARS = "webdataset"
_REVISION = "1"  # of the bytes that are made by a plan
_RECIPE, _DIGEST = b"mm_assets:recipe", b"mm_assets:plan"
_NAME_BYTES = 100  # of a tar header

Ints = npt.NDArray[np.int64]
Notes = dict[str, dict[str, Any]]
"""By the name of a shard, what it was made of (`write_shard`)."""


class SetExists(MmAssetsError, ValueError):
    """The folder has another training set, or other data, or another process makes a set there."""


@dataclass(frozen=True)
class ShardJob:
    """One shard to make.

    Args:
        name: its name, without suffix.
        split: its split.
        folder: folder or URL of the set.
        kind: format of the shard.
        tars: the tars that samples are copied from.
        of_tar: for each sample the number of its tar.
        starts: byte offsets of the samples in their tars.
        sizes: bytes of the samples.
        ids: their ids.
        columns: Hugging Face features of the columns of all sources.
        digest: of all that the bytes depend on.
    """

    name: str
    split: str
    folder: str
    kind: str
    tars: tuple[SourceTar, ...]
    of_tar: Ints
    starts: Ints
    sizes: Ints
    ids: pa.Array
    columns: Mapping[str, str]
    digest: str = ""

    @property
    def place(self) -> str:
        """What its warnings are about."""
        return self.uri

    @property
    def uri(self) -> str:
        """The main file of the shard."""
        return TrainingSet(self.folder, self.kind).uri(self.name, self.split)

    @property
    def ends(self) -> Ints:
        """Byte offsets at which the samples end in the new tar."""
        return np.cumsum(self.sizes)

    def with_digest(self) -> ShardJob:
        """Return the job with its digest."""
        digest = xxhash.xxh3_128(json.dumps([_REVISION, self.kind, self.split, self.columns]).encode())
        stamps = np.array([f"{tar.source}/{tar.name} {tar.stamp}" for tar in self.tars], dtype=object)
        digest.update("\n".join(stamps[self.of_tar]).encode())
        for numbers in (self.starts, self.sizes):
            digest.update(numbers.astype("<i8").tobytes())
        digest.update("\n".join(self.ids.to_pylist()).encode())
        return replace(self, digest=digest.hexdigest())


@dataclass(frozen=True)
class MadeShard:
    """A shard that was made: its name, samples, bytes, and whether it was there already."""

    name: str
    samples: int
    nbytes: int
    is_kept: bool = False


@dataclass(frozen=True)
class MadeSet:
    """What `TrainingSet.make` did.

    Attributes:
        plan: the plan.
        digest: of the plan, and of all that the bytes depend on.
        shards: the shards by name.
        failures: a line for each that could not be made.
    """

    plan: pa.Table
    digest: str
    shards: tuple[MadeShard, ...]
    failures: tuple[str, ...] = ()


class TrainingSet:
    """A training set in a folder, or below a URL.

    Args:
        folder: path or URL.
        kind: format of its shards.
    """

    def __init__(self, folder: str, kind: str = _TARS) -> None:
        self.folder = folder.rstrip("/") or "/"
        self.kind = kind

    def plan(self, sources: Sequence[Source], recipe: Recipe, pool: MapsJobs) -> pa.Table:
        """Return the plan by which the samples of the sources are laid out; the pool reads the sources.

        Raises:
            DataError: a source cannot be read, or the recipe does not fit it.
        """
        scanned: dict[str, pa.Table] = {}
        jobs = [Scan(tar, recipe.fields) for source in sources for tar in source.tars]
        for job, found in pool.map(scan_tar, jobs):
            if isinstance(found, WorkerFailure):
                raise DataError(found.at(job.place))
            scanned[job.tar.uri] = found
        plan = make_plan(sources, scanned, recipe, self._file_of)
        if self.kind != _TARS:  # samples have no byte ranges in other formats
            for name in ("offset", "bytes"):
                nothing = pa.nulls(plan.num_rows, pa.int64())
                plan = plan.set_column(plan.schema.get_field_index(name), name, nothing)
        return plan

    def make(
        self, sources: Sequence[Source], recipe: Recipe, pool: MapsJobs, overwrite: bool = False
    ) -> MadeSet:
        """Bring the set to the plan of a recipe. A shard that fails is reported, the others are made.

        Raises:
            SetExists: there is another set, or other data, and ``overwrite`` is not given.
            DataError: a source cannot be read, or the recipe does not fit it.
        """
        plan = self.plan(sources, recipe, pool)
        jobs = self._jobs(plan, sources)
        digest = _digest_of(plan, self.kind, recipe)
        plan = plan.replace_schema_metadata({_RECIPE: recipe.to_json(), _DIGEST: digest})
        if not overwrite:  # before anything appears there
            with readable_store_errors(), located(self.folder):
                self._refuse_other(digest)
        with readable_store_errors(), located(self.folder), self._alone():
            if not overwrite:
                self._refuse_other(digest)
            notes = self.notes()
            for place in {self.folder, self.notes_folder, *(posixpath.dirname(j.uri) for j in jobs)}:
                sweep_output(place)
            made = self._made(jobs, notes)
            is_replaced = self._is_replaced(digest, jobs, notes)
            folder = None if is_remote(self.folder) else self._next.folder
            beside = [] if folder is None else [replace(job, folder=folder) for job in jobs]
            waiting = self._next._made(beside, self._next.notes()) if beside else {}
            taken = [job for job in beside if job.name not in made and (is_replaced or job.name in waiting)]
            made = {**waiting, **made}
            if is_replaced and not beside:
                remove(self._plan_uri)
            todo = [job for job in (taken if is_replaced and beside else jobs) if job.name not in made]
            failures = self._write(todo, made, pool)
            if not failures:
                if is_replaced:
                    remove(self._plan_uri)
                self._take(taken)
                self._finish(plan, sources, recipe, {job.name: job.digest for job in jobs}, notes)
            return MadeSet(plan, digest, tuple(made[name] for name in sorted(made)), tuple(failures))

    def _made(self, jobs: Sequence[ShardJob], notes: Notes) -> dict[str, MadeShard]:
        """Return the shards that are here as these jobs make them, by name."""
        sizes = self._sizes(jobs)
        # What is stated of a tar cannot be told from the tar alone.
        stats = TarFolder(self.folder).stats() if self.kind == _TARS else []
        stated = {tar.file for tar in stats}
        found = {}
        for job in jobs:
            note = notes.get(job.name, {})
            is_stated = self.kind != _TARS or f"{job.name}.tar" in stated
            if is_stated and note.get("digest") == job.digest and sizes.get(job.uri) == note["size"]:
                found[job.name] = MadeShard(job.name, len(job.ids), note["bytes"], True)
        return found

    def _is_replaced(self, digest: str, jobs: Sequence[ShardJob], notes: Notes) -> bool:
        """Return whether there is a complete set, of which these jobs change a shard."""
        digests = {job.name: job.digest for job in jobs}
        found = self.digest()
        return found is not None and (
            found != digest or any(note["digest"] != digests.get(name) for name, note in notes.items())
        )

    def _write(self, jobs: Sequence[ShardJob], made: dict[str, MadeShard], pool: MapsJobs) -> list[str]:
        """Write shards, and add them to those that are made; return a line for each failure."""
        failures = []
        with Progress(len(jobs)) as progress:
            for job, result in pool.map(write_shard, jobs):
                if isinstance(result, WorkerFailure):
                    failures.append(result.at(job.uri))
                    progress.add(0, 0)
                else:
                    made[job.name] = result
                    progress.add(result.samples, result.nbytes)
        return failures

    def _take(self, jobs: Sequence[ShardJob]) -> None:
        """Move shards here that wait in ``.training/next``; what was in their place is gone then."""
        stats = {found.file: found for found in TarFolder(self._next.folder).stats()} if jobs else {}
        entry = format_of(self.kind)
        for job in jobs:
            uri = self.uri(job.name, job.split)
            remove(self.note_uri(job.name))
            if self.kind == _TARS:
                idx = read_bytes(f"{job.uri}.idx") or b""
                tar = stats[os.path.basename(job.uri)]
                TarFolder(self.folder).publish(local_path(job.uri), idx, tar)
            else:
                self._remove(uri)
                _move(entry.output(job.uri), entry.output(uri))
            _move(self._next.note_uri(job.name), self.note_uri(job.name))
        if not is_remote(self.folder):
            shutil.rmtree(local_path(self._next.folder), ignore_errors=True)

    @property
    def _next(self) -> TrainingSet:
        """The shards that wait until they replace some of a complete set; they are on its disk."""
        return TrainingSet(_no_link(join(self.folder, SET_NEXT)), self.kind)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from making a set here."""
        with sole_writer(self.notes_folder) as is_ours:
            if not is_ours:
                raise SetExists(f"{self.folder}: another process makes a training set there now")
            yield

    def uris(self, plan: pa.Table) -> list[str]:
        """Return the main files of the shards, in the order of the plan."""
        return [join(self.folder, file) for file in plan.column("shard").unique().drop_null().to_pylist()]

    def uri(self, name: str, split: str) -> str:
        """Return the main file of a shard. Tars are in the folder, other formats have one for each split."""
        return format_of(self.kind).uri(self.folder if self.kind == _TARS else join(self.folder, split), name)

    def _file_of(self, split: str, number: int) -> str:
        return self.uri(shard_name(split, number), split).removeprefix(f"{self.folder}/")

    def _name_of(self, file: str) -> str:
        entry = format_of(self.kind)
        return posixpath.basename(entry.output(file)).removesuffix(entry.written)

    @property
    def notes_folder(self) -> str:
        """Its folder of notes."""
        return _no_link(join(self.folder, SET_NOTES))

    def note_uri(self, name: str) -> str:
        """Return the file of the note on a shard."""
        return join(self.folder, SET_NOTES, f"{name}.json")

    @property
    def _plan_uri(self) -> str:
        return join(self.folder, PLAN_FILE)

    def _jobs(self, plan: pa.Table, sources: Sequence[Source]) -> list[ShardJob]:
        tars = [tar for source in sources for tar in source.tars]
        columns = union_columns([tar.stats for tar in tars])
        numbers = {(tar.source, tar.name): number for number, tar in enumerate(tars)}
        used = plan.slice(0, plan.num_rows - plan.column("shard").null_count)
        pairs = zip(in_slices(used.column("source")), in_slices(used.column("source_shard")), strict=True)
        of_tar = np.fromiter((numbers[pair] for pair in pairs), np.int64, used.num_rows)
        shards = used.column("shard").combine_chunks()
        splits = used.column("split").combine_chunks()
        starts, sizes = (used.column(name).to_numpy() for name in ("source_offset", "source_bytes"))
        ids = used.column("sample_id").combine_chunks()
        is_first = np.ones(len(shards), bool)
        is_first[1:] = pc.not_equal(shards[1:], shards[:-1]).to_numpy(zero_copy_only=False)
        bounds = [*np.flatnonzero(is_first).tolist(), len(shards)]
        jobs = []
        for start, end in zip(bounds, bounds[1:], strict=False):
            used_tars, places = np.unique(of_tar[start:end], return_inverse=True)
            job = ShardJob(
                self._name_of(shards[start].as_py()),
                splits[start].as_py(),
                self.folder,
                self.kind,
                tuple(tars[number] for number in used_tars),
                places,
                starts[start:end],
                sizes[start:end],
                ids[start:end],
                columns,
            )
            jobs.append(job.with_digest())
        return jobs

    def digest(self) -> str | None:
        """Return the digest of the plan that the folder has; None without one."""
        found = read_bytes(self._plan_uri)
        if found is None:
            return None
        try:
            return (pq.read_schema(pa.BufferReader(found)).metadata or {}).get(_DIGEST, b"").decode()
        except (pa.ArrowException, OSError):
            return ""

    def _refuse_other(self, digest: str) -> None:
        found = self.digest()
        if found not in (None, digest):
            raise SetExists(f"{self.folder}: has a training set of another plan; --overwrite replaces it")
        if found is None and not exists(join(self.folder, SET_NOTES)) and self._has_data():
            raise SetExists(f"{self.folder}: has data that is no training set; name another folder")

    def _has_data(self) -> bool:
        fs, path = filesystem(self.folder)
        fs.invalidate_cache()
        found = fs.ls(path, detail=False) if fs.exists(path) else []
        return any(not str(name).rstrip("/").rpartition("/")[2].startswith(".") for name in found)

    def notes(self) -> Notes:
        """Return the notes on shards, by name. Files that no shard of ours can have are none."""
        folder = self.notes_folder
        names = list(files_in(folder, suffix=".json"))
        texts = parallel_map(lambda name: read_bytes(join(folder, name)), names, folder)
        found: Notes = {}
        for name, text in zip(names, texts, strict=True):
            note = _read_note(name.removesuffix(".json"), text or b"")
            found |= {} if note is None else {name.removesuffix(".json"): note}
        return found

    def _sizes(self, jobs: Sequence[ShardJob]) -> dict[str, int]:
        """Return the sizes of the main files of the shards that exist."""
        folders = dict.fromkeys(posixpath.dirname(job.uri) for job in jobs)
        return {
            join(folder, name): file.size for folder in folders for name, file in files_in(folder).items()
        }

    def _remove(self, uri: str) -> None:
        """Remove a shard."""
        output = format_of(self.kind).output(uri)
        fs, path = filesystem(output)
        if fs.exists(path):
            fs.rm(path, recursive=output != uri)

    def _finish_split(self, folder: str) -> None:
        """Bring the index of a split up to date, if the format has one; remove the folder of an empty one."""
        if exists(folder):
            writer_for(self.kind, folder).finish(())
        if not is_remote(folder):
            with suppress(OSError):  # it has shards, or files of the user
                os.rmdir(local_path(folder))

    def _finish(
        self,
        plan: pa.Table,
        sources: Sequence[Source],
        recipe: Recipe,
        digests: Mapping[str, str],
        notes: Notes,
    ) -> None:
        """Remove shards of earlier plans, and write index files, card and plan.

        Raises:
            SetExists: meanwhile another process has made shards of another plan.
        """
        gone = {name: note for name, note in notes.items() if name not in digests}
        about = set_notes(plan, sources, recipe)
        if self.kind == _TARS:
            folder = TarFolder(self.folder)
            folder.withdraw([f"{name}.tar" for name in gone])
            folder.finish(about)
        else:
            for name, note in gone.items():
                self._remove(self.uri(name, note["split"]))
            for split in dict.fromkeys([*recipe.splits, *(note["split"] for note in gone.values())]):
                self._finish_split(join(self.folder, split))
            publish_bytes(
                join(self.folder, CARD),
                plain_card(self.kind, list(recipe.splits), about).encode(),
            )
        for name in gone:
            remove(self.note_uri(name))
        found = {name: note["digest"] for name, note in self.notes().items()}
        if other := [name for name in {**digests, **found} if found.get(name) != digests.get(name)]:
            raise SetExists(
                f"{self.folder}: another process makes a training set there, too (shard {other[0]}); "
                "the set is not complete: run it again"
            )
        with staged(self._plan_uri) as file:
            pq.write_table(plan, file.path, compression="zstd")
            file.publish()


def _digest_of(plan: pa.Table, kind: str, recipe: Recipe) -> str:
    """Return the digest of a plan. Where and when its sources were written has no part in it."""
    digest = xxhash.xxh3_128(f"{_REVISION} {kind} {recipe.to_json()}".encode())
    for column in plan.columns:
        for value in in_slices(column):
            digest.update(f"{value!r}\0".encode())
    return digest.hexdigest()


def _move(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(local_path(target)), exist_ok=True)
    os.rename(local_path(source), local_path(target))


def _no_link(folder: str) -> str:
    """Return a folder of a set; an error if it is a link, which may lead out of the set."""
    if not is_remote(folder) and os.path.islink(local_path(folder)):
        raise SetExists(f"{folder}: is a symbolic link; a training set has a folder there")
    return folder


def _read_note(name: str, text: bytes) -> dict[str, Any] | None:
    """Return the note on a shard; None if it is not as `write_shard` writes it, but of somebody else."""
    try:
        note = json.loads(text)
        split, digest, nbytes, size = (note[key] for key in ("split", "digest", "bytes", "size"))
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    is_ours = isinstance(digest, str) and isinstance(split, str) and split_of(name) == split
    return note if is_ours and type(nbytes) is int and (size is None or type(size) is int) else None


def write_shard(job: ShardJob) -> MadeShard:
    """Make one shard and publish it.

    Raises:
        ShardError: a source has changed since it was planned.
    """
    with readable_store_errors(), located(job.uri):
        note = TrainingSet(job.folder).note_uri(job.name)
        tar_uri = job.uri if job.kind == _TARS else f"{format_of(job.kind).output(job.uri)}.tar"
        with staged(tar_uri) as file:
            _copy(job, file.path)
            stats, idx = _checked(job, file.path)
            if changed := changed_tars(job.tars):
                raise ShardError(f"{job.uri}: the source {changed[0]} has changed meanwhile; run it again")
            remove(note)
            nbytes = stats.bytes
            if job.kind == _TARS:
                with open(file.path, "rb") as tar:
                    content: str | None = digest_of(tar)
                TarFolder(job.folder).publish(file.path, idx, stats)
            else:
                nbytes = _convert(job, file.path)
                content = content_of(job.kind, job.uri)
            file.discard()
        size = nbytes if job.kind == _TARS else size_of(job.uri)
        about = {"digest": job.digest, "split": job.split, "bytes": nbytes, "size": size, "content": content}
        publish_bytes(note, json.dumps(about).encode())
        return MadeShard(job.name, len(job.ids), nbytes)


def content_of(kind: str, uri: str) -> str | None:
    """Return the xxh3-128 of a shard, or that of the digests of its files; None if it is not there."""
    output = format_of(kind).output(uri)
    files = [uri] if output == uri else [join(output, name) for name in files_in(output)]
    found = [each["digest"] for each in digest_files(output, files).values() if each]
    if output != uri:
        found = [xxhash.xxh3_128_hexdigest(" ".join(sorted(found)).encode())] if found else []
    return found[0] if found else None


def _convert(job: ShardJob, tar: str) -> int:
    """Write the shard in its own format, from the tar; return its bytes."""
    reader = reader_for(_TARS, tar, materialize=True, max_batch_bytes=DEFAULT_BATCH_BYTES, roots=[])
    folder = posixpath.dirname(format_of(job.kind).output(job.uri))
    writer = writer_for(job.kind, folder, roots=[], on_materialize_error="warn")
    return Conversion(reader, Partition(job.name, (tar,)), writer).run().nbytes


def _checked(job: ShardJob, tar: str) -> tuple[TarPartitionStats, bytes]:
    """Return statistics and index of a tar that was copied.

    Raises:
        ShardError: its samples are not the planned ones.
    """
    name = f"{job.name}.tar"
    changed = (
        f"{job.uri}: what was copied is not what was planned: a source has changed meanwhile; run it again"
    )
    starts = job.ends - job.sizes
    with open(tar, "rb", buffering=0) as file:
        for start, sample_id in zip(starts.tolist(), job.ids.to_pylist(), strict=True):
            found = os.pread(file.fileno(), _NAME_BYTES, start)
            if found.partition(b".")[0].decode(errors="replace") != sample_key(sample_id):
                raise ShardError(f"{changed} (sample {sample_id!r:.100})")
        try:
            stats, idx = measure(file.fileno(), name)
        except TarDamage as error:
            raise ShardError(f"{changed} ({error})") from error
    if idx != tar_idx([*starts.tolist(), int(job.ends[-1])]):
        raise ShardError(changed)
    return replace(stats, columns=job.columns, split=job.split), idx


def _copy(job: ShardJob, path: str) -> None:
    """Copy the samples into a new tar, those of one source in the order in which they lie there."""
    starts = job.ends - job.sizes
    end = int(job.ends[-1])
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.truncate(target, end + END_BLOCKS)
        for number, tar in enumerate(job.tars):
            rows = np.flatnonzero(job.of_tar == number)
            rows = rows[np.argsort(job.starts[rows], kind="stable")]
            ranges = list(_joined(job.starts[rows].tolist(), job.sizes[rows].tolist(), starts[rows].tolist()))
            with located(tar.place):
                copy_ranges(tar.uri, target, ranges)
    finally:
        os.close(target)


def _joined(starts: Sequence[int], sizes: Sequence[int], targets: Sequence[int]) -> Iterator[Range]:
    """Yield ranges, neighbours on both sides as one."""
    at, size, to = starts[0], sizes[0], targets[0]
    for start, length, target in zip(starts[1:], sizes[1:], targets[1:], strict=True):
        if start == at + size and target == to + size:
            size += length
            continue
        yield at, size, to
        at, size, to = start, length, target
    yield at, size, to
