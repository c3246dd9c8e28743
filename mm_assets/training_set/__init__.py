"""The set to train from: shuffled, split and weighted samples in shards of equal size.

Here are its sources, folders of our tars, and what a plan has to know of each sample in them. No image is
read. Offsets come from the headers of a tar, ids from the names of its members. A sample's json is read if
its id is too long for a name, or if the plan asks for a value of the sample (`Fields`).
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import xxhash

from mm_assets.formats.names import TAR_SUFFIXES, sample_key
from mm_assets.formats.parquet import UnreadableFile, read_small_table
from mm_assets.formats.partitions import common_root, ref_path
from mm_assets.formats.tar.scan import Member, read_member, scan
from mm_assets.formats.tar.spool import open_tar
from mm_assets.formats.webdataset import MAX_JSON_BYTES, ROW_EXTRA, SAMPLE_ID
from mm_assets.formats.webdataset.client_files import TarPartitionStats, tar_idx
from mm_assets.formats.webdataset.writer import CARD, TarFolder
from mm_assets.model.errors import DataError, ShardError
from mm_assets.storage.files import filesystem, is_remote, join, local_path, read_bytes
from mm_assets.storage.listing import expand_paths
from mm_assets.storage.stamps import local_stamp, remote_stamps

SCORES_BESIDE = "sample_scores"  # folder beside that of a storage root's tars, with a Parquet file for each
_LICENCES = re.compile(
    r"^license:(.*(?:\n- .*)*)", re.MULTILINE
)  # in the front matter of a card: one, or a list
_COPIED_AT_ONCE = 1 << 20  # bytes, where the kernel cannot copy
_RANGES_AT_ONCE = 8  # of an object store
_LARGEST_RANGE = 8 << 20
_DOMAIN = re.compile(r"domain\((.+)\)")


@dataclass(frozen=True)
class SourceTar:
    """A tar of ours, from which samples are copied.

    Args:
        source: name of its source in the plan.
        uri: path or URL.
        name: its path below the source; the plan names it so.
        stamp: changes whenever its content does.
        stats: what its folder knows of it.
        made_of: the file of the user of which it was made for one run, so that nobody else writes it.
    """

    source: str
    uri: str
    name: str
    stamp: str
    stats: TarPartitionStats
    made_of: str = ""

    @property
    def place(self) -> str:
        """What its users know it by."""
        return self.made_of or self.uri


@dataclass(frozen=True)
class Source:
    """A source by its name in the plan: its tars in order, and the licences that its card states."""

    name: str
    tars: tuple[SourceTar, ...]
    licences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fields:
    """Values of samples that a plan asks for, by the names of columns of their metadata or of sample scores.

    Args:
        split_by: of samples that have to be in one split; ``domain(url)`` is the domain of a column of URLs.
            None: each sample's id.
        weight_by: a number.
        tokens: a whole number.
    """

    split_by: str | None = None
    weight_by: str | None = None
    tokens: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns without which no value is known."""
        names = (self.split_column, self.weight_by, self.tokens)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def split_column(self) -> str | None:
        """The column that `split_by` is made of."""
        found = _DOMAIN.fullmatch(self.split_by or "")
        return self.split_by if found is None else found[1]

    def split_value(self, value: Any) -> str | None:
        """Return what decides on the split of a sample, from its value of the column."""
        if value is None:
            return None
        if self.split_by != self.split_column:
            try:
                host = urlsplit(str(value)).hostname or ""
            except ValueError:  # no URL, such as http://[::1/x
                return None
            return host.removeprefix("www.") or None
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def short_names(locations: Sequence[str]) -> list[str]:
    """Return the name of each source in a plan: the end of its location, as long as needed to differ.

    Raises:
        ValueError: two locations are the same.
    """
    if len(set(locations)) < len(locations):
        twice = next(place for place in locations if locations.count(place) > 1)
        raise ValueError(f"a source is named twice: {twice}")
    folders = [re.sub(r"[*?\[{].*", "", place).rstrip("/") for place in locations]
    parts = [
        (folder if folders.count(folder) == 1 else place.rstrip("/")).split("/")
        for place, folder in zip(locations, folders, strict=True)
    ]
    whole: list[str] = []
    for length in range(1, max(map(len, parts)) + 1):
        whole = ["/".join(each[-length:]) for each in parts]
        names = [name.removesuffix(".tar") or "source" for name in whole]
        if len(set(names)) == len(names):
            return names
    return whole  # such as x and x.tar of one folder


def refuse_shared_files(files: Mapping[str, Sequence[str]]) -> None:
    """Raise an error if two sources have a file in common.

    Args:
        files: paths or URLs of the files of each source, by its location.
    """
    owners: dict[str, str] = {}
    for location, found in files.items():
        for file in found:
            real = file if is_remote(file) else os.path.realpath(local_path(file))
            if (owner := owners.setdefault(real, location)) != location:
                raise ValueError(f"{file}: named twice, by {owner} and by {location}")


def our_tars(location: str, name: str) -> Source | None:
    """Return the source at a path, folder, pattern or URL; None unless all its tars are ours.

    Raises:
        FileNotFoundError: there is no tar.
    """
    files = expand_paths(location, TAR_SUFFIXES)
    by_folder = {folder: list(found) for folder, found in groupby(files, posixpath.dirname)}
    root = common_root(files)
    tars: list[SourceTar] = []
    licences: list[str] = []
    for folder, found in by_folder.items():
        known = {stats.file: stats for stats in TarFolder(folder).stats()}
        if any(posixpath.basename(file) not in known for file in found):
            return None
        stamps = _stamps(found)
        tars += [
            SourceTar(name, file, ref_path(file, root), stamps[file], known[posixpath.basename(file)])
            for file in found
        ]
        licences += _licences(folder)
    return Source(name, tuple(tars), tuple(dict.fromkeys(licences)))


def _stamps(files: Sequence[str]) -> dict[str, str]:
    if is_remote(files[0]):
        return remote_stamps(files)
    return {file: local_stamp(file) for file in files}


def version_of(tars: Mapping[str, str]) -> str:
    """Return a digest of tars, given with their stamps by their names."""
    return xxhash.xxh3_128_hexdigest("\n".join(f"{name} {tars[name]}" for name in sorted(tars)).encode())


def present_version(folder: str) -> str:
    """Return `version_of` the tars that are in a folder or below a URL now."""
    try:
        files = expand_paths(folder, TAR_SUFFIXES)
    except FileNotFoundError:
        return version_of({})
    root = common_root(files)
    return version_of({ref_path(file, root): stamp for file, stamp in _stamps(files).items()})


def changed_tars(tars: Sequence[SourceTar]) -> list[str]:
    """Return the tars that are no longer as their stamps say."""
    known = {tar.uri: tar.stamp for tar in tars if not tar.made_of}
    remote = [uri for uri in known if is_remote(uri)]
    for folder in {posixpath.dirname(uri) for uri in remote}:
        filesystem(folder)[0].invalidate_cache()
    now = remote_stamps(remote) if remote else {}
    return [uri for uri, stamp in known.items() if stamp != (now[uri] if uri in now else local_stamp(uri))]


def _licences(folder: str) -> list[str]:
    """Return the licences in the front matter of a folder's card."""
    card = (read_bytes(join(folder, CARD)) or b"").decode(errors="replace")
    found = _LICENCES.search(card[3:].partition("\n---\n")[0]) if card.startswith("---\n") else None
    return [] if found is None else re.findall(r"[A-Za-z0-9][A-Za-z0-9.+_-]*", found[1])


SCANNED = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("split_value", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("tokens", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Scan:
    """A tar to scan, in any process; see `scan_tar`."""

    tar: SourceTar
    fields: Fields

    @property
    def place(self) -> str:
        """What its warnings are about."""
        return self.tar.place


def scan_tar(job: Scan) -> pa.Table:
    """Return a row of `SCANNED` for each sample of a tar, in order.

    Raises:
        ShardError: the tar is not as its folder knows it, or a value of a sample does not fit.
    """
    tar = job.tar
    with open_tar(tar.uri, tar.place) as descriptor:
        index = scan(descriptor, tar.place)
        groups = [
            list(found) for _, found in groupby(index.members, lambda member: member.name.partition(".")[0])
        ]
        starts = [group[0].header_offset for group in groups]
        idx = tar_idx([*starts, index.end])
        if not tar.stats.fits(os.fstat(descriptor).st_size, idx):
            raise ShardError(
                f"{tar.place}: not the tar that its statistics in .mm_assets are about; write it again"
            )
        values = _Values(job, descriptor)
        columns: dict[str, list[Any]] = {name: [] for name in SCANNED.names}
        for group, start, end in zip(groups, starts, [*starts[1:], index.end], strict=True):
            found = values.of(group)
            for name, value in (*found.items(), ("offset", start), ("bytes", end - start)):
                columns[name].append(value)
    return pa.table([pa.array(columns[field.name], field.type) for field in SCANNED], SCANNED)


class _Values:
    """The values of the samples of one open tar: of their metadata, else of the scores beside the tar."""

    def __init__(self, job: Scan, descriptor: int) -> None:
        self._descriptor = descriptor
        self._fields = job.fields
        self._uri = job.tar.place
        stored = [name for name in job.fields.columns if name not in job.tar.stats.columns]
        self._is_json_read = len(stored) < len(job.fields.columns)
        self._scores = _scores(job, stored) if stored else {}

    def of(self, group: list[Member]) -> dict[str, Any]:
        """Return id and values of the sample whose members these are."""
        key = group[0].name.partition(".")[0]
        payload = self._payload(group[-1]) if self._is_json_read or key.startswith("=") else {}
        sample_id = payload.get(SAMPLE_ID, unquote(key))
        if not isinstance(sample_id, str) or sample_key(sample_id) != key:
            raise ShardError(
                f"{self._uri}: {group[-1].name}: its sample_id is {sample_id!r:.100}, which has another key"
            )
        values = {**payload.get(ROW_EXTRA, {}).get("metadata", {}), **self._scores.get(sample_id, {})}
        named = self._fields
        return {
            "sample_id": sample_id,
            "split_value": named.split_value(values.get(named.split_column)),
            "score": self._number(sample_id, named.weight_by, values),
            "tokens": self._whole_number(sample_id, named.tokens, values),
        }

    def _payload(self, member: Member) -> dict[str, Any]:
        if not member.name.endswith(".json") or member.size > MAX_JSON_BYTES:
            raise ShardError(f"{self._uri}: {member.name}: the last member of a sample is its json")
        try:
            found = json.loads(read_member(self._descriptor, member, self._uri))
            return found if isinstance(found[ROW_EXTRA]["metadata"], dict) else {**found, ROW_EXTRA: {}}
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise ShardError(f"{self._uri}: {member.name}: no json of ours: {error!r:.200}") from error

    def _number(self, sample_id: str, name: str | None, values: Mapping[str, Any]) -> float | None:
        value = None if name is None else values.get(name)
        if value is not None and (
            isinstance(value, bool | str | list | dict) or not 0 <= value < float("inf")
        ):
            raise ShardError(
                f"{self._uri}: sample {sample_id!r:.100}: {name} is {value!r:.100}, no weight from 0 on"
            )
        return None if value is None else float(value)

    def _whole_number(self, sample_id: str, name: str | None, values: Mapping[str, Any]) -> int | None:
        value = None if name is None else values.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ShardError(
                f"{self._uri}: sample {sample_id!r:.100}: {name} is {value!r:.100}, no number of tokens"
            )
        return value


def _scores(job: Scan, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the stored scores of a tar's samples by id.

    Raises:
        DataError: there are none of these names.
    """
    folder, name = posixpath.split(job.tar.uri)
    uri = join(posixpath.dirname(folder), SCORES_BESIDE, f"{name.removesuffix('.tar')}.parquet")
    try:
        table = read_small_table(uri, ["sample_id", *columns])
    except (FileNotFoundError, UnreadableFile, LookupError, ValueError) as error:
        known = ", ".join(job.tar.stats.columns) or "none"
        scores = "" if job.tar.made_of else f", and no score in {uri}"
        raise DataError(
            f"{job.tar.place}: {columns[0]} is no column of its samples' metadata ({known}){scores}"
        ) from error
    return {row["sample_id"]: {name: row[name] for name in columns} for row in table.to_pylist()}


Range = tuple[int, int, int]  # offset in the source, bytes, offset in the new tar


def copy_ranges(uri: str, target: int, ranges: Sequence[Range]) -> None:
    """Copy ranges of a source into an open file.

    Raises:
        EOFError: it has fewer bytes.
    """
    if is_remote(uri):
        _fetch(uri, target, ranges)
    else:
        _copy_local(local_path(uri), target, ranges)


def _copy_local(path: str, target: int, ranges: Sequence[Range]) -> None:
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at, size, to in ranges:
            while size:
                copied = _copy_some(source, target, size, at, to)
                if not copied:
                    raise EOFError(f"it ends {size} bytes before the end of a sample")
                at, size, to = at + copied, size - copied, to + copied
    finally:
        os.close(source)


def _copy_some(source: int, target: int, size: int, at: int, to: int) -> int:
    """Copy some bytes, in the kernel where it can, and return how many."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, size, at, to)
        except OSError:  # between these file systems; a fault of the disk comes again below
            pass
    return os.pwrite(target, os.pread(source, min(size, _COPIED_AT_ONCE), at), to)


def _fetch(uri: str, target: int, ranges: Sequence[Range]) -> None:
    """Copy ranges of a remote tar; several are requested at once, each of some megabytes at most."""
    fs, path = filesystem(uri)
    parts = [
        (at + done, min(_LARGEST_RANGE, size - done), to + done)
        for at, size, to in ranges
        for done in range(0, size, _LARGEST_RANGE)
    ]

    def fetch(part: Range) -> None:
        at, size, to = part
        data = fs.cat_file(path, start=at, end=at + size)
        if len(data) != size:
            raise EOFError(f"the store gave {len(data)} of {size} bytes from byte {at} on")
        view = memoryview(data)
        while view:
            written = os.pwrite(target, view, to)
            view, to = view[written:], to + written

    with ThreadPoolExecutor(_RANGES_AT_ONCE) as threads:
        for _ in threads.map(fetch, parts):
            pass
