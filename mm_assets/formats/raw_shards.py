"""Raw shards as users configure them: which there are, whether one is gone, and a reader of all kinds.

* `RawLocations` lists what ``MM_RAW_SHARDS`` names: paths, globs, brace lists, URLs or modalities, with
  spaces between.
* `RawAbsence` tells whether a shard is gone, or only out of reach.
* `made_address` is the address of raw shards that are made when opened: of modalities, PDFs, images, plugins.
* `RawReader` reads tars, JSON lines, and Parquet files of other tools.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.document_tars import PluginAddress
from mm_assets.formats.jsonl import samples_of, tars_beside, without_images
from mm_assets.formats.names import (
    NAMED_SUFFIXES,
    RAW_SUFFIXES,
    first_kind,
    is_lines,
    is_parquet,
    passed_over_lines,
)
from mm_assets.formats.paired import PairedAddress, modality_of
from mm_assets.formats.parquet.reader_writer import open_source
from mm_assets.formats.partitions import (
    Partition,
    group_name,
    own_name,
    partition_name,
    ref_path,
    root_of_locations,
)
from mm_assets.formats.pdf.shard import PdfAddress, pdf_location
from mm_assets.formats.reader import FileSource
from mm_assets.formats.webdataset import VIRTUAL_SCHEMES
from mm_assets.formats.webdataset.folders import FolderAddress, folder_location
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.formats.webdataset.virtual_tars import FolderedAddress
from mm_assets.model.errors import MmAssetsError, warn_user
from mm_assets.storage import canonical_url, clean_url, expand_braces, without_secrets
from mm_assets.storage.errors import error_line, is_of_store, is_utf8, not_utf8
from mm_assets.storage.files import (
    absolute,
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    size_of,
)
from mm_assets.storage.listing import convertible_line, expand, hive_line
from mm_assets.storage.stamps import MISSING, local_stamp, remote_stamps

_FOLDERED: tuple[tuple[str, type[FolderedAddress], Callable[[str], str | None]], ...] = (
    ("PDFs", PdfAddress, pdf_location),
    ("folders of images", FolderAddress, folder_location),
)
MadeAddress = PairedAddress | FolderedAddress | PluginAddress


def made_address(items: Sequence[str], missing_keys: str) -> MadeAddress | None:
    """Return the address that items stand for together; None where they are files of raw shards as such.

    Args:
        items: locations as users write them.
        missing_keys: see `PairedAddress`.

    Raises:
        ValueError: modalities, PDFs, folders of images or a plugin are mixed with other locations, or a
            modality is named twice.
    """
    plugins = list(filter(None, map(PluginAddress.named, items)))
    if plugins and len(items) > 1:
        raise ValueError(f"raw shards: plugin:… and other locations cannot be mixed: {' '.join(items)}")
    if plugins:
        return plugins[0]
    named = [pair for item in items if (pair := modality_of(item)) is not None]
    for what, address, location in _FOLDERED:
        found = [place for item in items if (place := location(item)) is not None]
        if found and len(found) == len(items):
            return address(tuple(found))
        if found and len(named) < len(items):
            raise ValueError(f"raw shards: {what} and other locations cannot be mixed: {' '.join(items)}")
    if named and len(named) < len(items):
        raise ValueError(
            f"raw shards: modalities ({named[0][0]}=...) and other locations cannot be mixed: "
            f"{' '.join(items)}"
        )
    if not named:
        return None
    if repeated := [name for name, count in Counter(name for name, _ in named).items() if count > 1]:
        raise ValueError(f"raw shards: modality {repeated[0]!r} is named twice")
    return PairedAddress(dict(named), missing_keys)


def location_of(item: str) -> str:
    """Return the path or URL of an input; of PDFs, images and plugins, the URL of the tars made of them.

    Warns of what looks like data beside them, but is not read.

    Raises:
        FileNotFoundError: it names PDFs, images or a plugin, and there are none.
        ValueError: there is no such plugin.
    """
    named = (kind((place,)) for _, kind, find in _FOLDERED if (place := find(item)) is not None)
    address = next(named, None) or PluginAddress.named(item)
    if address is None:
        return absolute(item)
    address.names()
    for line in address.passed_over():
        warn_user(line)
    return address.url


def originals_of(url: str) -> dict[str, str]:
    """Return the files that a virtual raw shard is made of, by their names in locators."""
    for address in (PairedAddress, PdfAddress, FolderAddress):
        scheme = f"{address.protocol}://"
        if url.startswith(scheme):
            token, _, name = url.removeprefix(scheme).partition("/")
            originals = address.parse(token).originals(name.removesuffix(".tar"))
            return {name: f"{scheme}{token}/{name}" for name in originals}
    return {}


class RawReader(InterleavedWebdatasetReader):
    """Reader that chooses the format of each file by its suffix; arguments as `InterleavedWebdatasetReader`.

    In Parquet, field names are column names. Extensions, the image member and per-item fields do not apply
    there.
    """

    suffixes = RAW_SUFFIXES

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        if not is_parquet(uri):
            return self._opened(uri, partition, ids, samples_of(uri, partition))
        path = ref_path(uri, self.relative_to)
        return open_source(
            uri, self.layout, path, partition, ids, self.max_member_bytes, self.storage_options
        )


_PATTERN = re.compile(r"[*?\[]")
_MARGIN = 60.0  # seconds from the last change of a file to an event that surely notes its version
_MAX_REASONS = 3  # in the message that no raw shards were found


class AmbiguousPartition(MmAssetsError, ValueError):
    """Several raw files share the name of one partition."""


@dataclass(frozen=True)
class RawShard:
    """One partition of raw input: its files, and a version that changes whenever a file does.

    Attributes:
        key: the partition key.
        files: its files, in order.
        is_ambiguous: several files claim the name (``x.tar`` and ``x.tar.gz``), and none of them is read.
        stamps: stamps of remote files, by URL.
    """

    key: str
    files: tuple[str, ...]
    is_ambiguous: bool = False
    stamps: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def version(self) -> str:
        """A digest of each file's etag, or size, modification time and both ends; computed on first use.

        The tar with the images of JSON lines counts, too. (If the lines name it, its name has a digest.)
        """
        stamps = []
        for file in self.files:
            for place in (file, *tars_beside(file)):
                stamp = self.stamps[place] if is_remote(place) else local_stamp(place)
                if place == file or stamp != MISSING:
                    stamps.append(f"{os.path.basename(place)}:{stamp}")
        return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:32]

    @property
    def uri(self) -> str:
        """The one file, a JSON list of several, or a JSON object of contending files; see `files_of`."""
        if self.is_ambiguous:
            return json.dumps({self.key: self.files})
        return self.files[0] if len(self.files) == 1 else json.dumps(self.files)


def unchanged_shards(listing: Mapping[str, RawShard], times: Mapping[str, float]) -> set[str]:
    """Return the shards that have the version they had at a time, as the file system tells without a read.

    Their files, and links that lead to them, have not changed since a minute before: an event is a little
    younger than the version that it notes, and clocks differ. Shards with remote files are none of them: what
    tells their versions was listed with them. Nor are JSON lines: the tar with their images may be gone.

    Args:
        times: of shards, in seconds since 1970.
    """

    @cache
    def links_changed_at(folder: str) -> float:
        above, found = os.path.dirname(folder), os.lstat(folder)
        own = found.st_ctime if stat.S_ISLNK(found.st_mode) else 0.0
        return own if above == folder else max(own, links_changed_at(above))

    def changed_at(file: str) -> float:
        """Return when the file, its name, or a link on the way was changed last; nobody can set that."""
        found = os.lstat(file)
        links = links_changed_at(os.path.dirname(file))
        if stat.S_ISLNK(found.st_mode):
            return max(links, found.st_ctime, os.stat(file).st_ctime)
        return max(links, found.st_ctime)

    def is_unchanged(shard: RawShard, at: float) -> bool:
        try:
            is_told_apart = any(is_remote(file) or is_lines(file) for file in shard.files)
            return not is_told_apart and max(map(changed_at, shard.files)) < at - _MARGIN
        except OSError:
            return False

    return {key for key, at in times.items() if key in listing and is_unchanged(listing[key], at)}


def files_of(uri: str) -> tuple[str, ...]:
    """Return the files that a `RawShard.uri` names; any other URI is one file.

    Raises:
        AmbiguousPartition: several files contend for the shard's name; the message names them.
    """
    if uri.startswith("{"):
        ((key, files),) = json.loads(uri).items()
        raise AmbiguousPartition(
            f"{len(files)} files would become partition {key!r}, rename all but one: {', '.join(files)}"
        )
    return tuple(json.loads(uri)) if uri.startswith("[") else (uri,)


class Listing(dict[str, RawShard]):
    """Raw shards by partition key.

    ``unmatched`` has a line for each folder or pattern without shards, and for tars in them that are none:
    raw shards that are not listed may be there. ``notes`` are other lines for the user.
    """

    def __init__(
        self, shards: Mapping[str, RawShard], unmatched: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> None:
        super().__init__(shards)
        self.unmatched = tuple(unmatched)
        self.notes = tuple(notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """All lines."""
        return (*self.unmatched, *self.notes)


class RawLocations:
    """The locations in ``MM_RAW_SHARDS``, and the two roots of relative partition names and locators.

    Roots follow from the text, not from the files found: a shard added later renames no partition. They are
    the deepest common folder of the local locations and the deepest common prefix of the URLs.
    """

    def __init__(self, text: str, excluded: str = "", missing_keys: str = "skip") -> None:
        """Parse the locations.

        Args:
            text: the locations, separated by whitespace, quoted as in a shell.
            excluded: folder or URL prefix whose files are no raw shards: the outputs.
            missing_keys: see `PairedAddress`.

        Raises:
            ValueError: an unmatched quotation mark, or locations that cannot be mixed.
        """
        self._real_folders: dict[str, str] = {}  # of this listing: asking the file system is slow
        self._excluded = (
            excluded if is_remote(excluded) else os.path.realpath(local_path(excluded)) if excluded else ""
        )
        try:
            items = shlex.split(text)
        except ValueError as error:
            hint = "write \\' for a quotation mark, and \\\\ for a backslash, that is part of a name"
            raise ValueError(f"raw shards {without_secrets(text)!r:.200}: {error}; {hint}") from error
        items = list(map(clean_url, items))
        self._made = made_address(items, missing_keys)
        if self._made is not None:
            items = [self._made.url]
        self._items = [canonical_url(absolute(item)) for item in items]
        self.local_root = root_of_locations(
            [item for item in self._items if not is_remote(item)], NAMED_SUFFIXES
        )
        remote = [item for item in self._items if is_remote(item)]
        self.remote_root = root_of_locations(remote, NAMED_SUFFIXES)

    def roots(self) -> list[str]:
        """Return all roots that locators of these shards may point into; relative ones start at the first."""
        return [root for root in (self.local_root, self.remote_root) if root]

    def local_folders(self) -> list[str]:
        """Return the folder of each local location; modalities, and PDFs, have their own."""
        items = self._items if self._made is None else map(absolute, self._made.places)
        folders = (root_of_locations([item], NAMED_SUFFIXES) for item in items if not is_remote(item))
        return list(dict.fromkeys(filter(None, folders)))

    def shards(self, shards_per_partition: int = 1) -> Listing:
        """Return all raw shards by partition key, in groups of several (`group_name`) if asked.

        A file named in the text, also by a brace list, is a partition whether it exists or not: a missing one
        fails alone, when it is read. So does a partition whose name several files share.

        Raises:
            FileNotFoundError: no shard is found at all; one line.
        """
        if self._made is not None:
            self._made.names()  # raises, naming the folder, where one is missing
        self._real_folders.clear()
        is_named = self._elements()
        named = [element for element, is_file in is_named.items() if is_file]
        stamps = remote_stamps([file for file in named if is_remote(file)])
        absent = [
            file
            for file in named
            if (stamps[file] == MISSING if is_remote(file) else not os.path.exists(file))
        ]
        files, excluded, unmatched, convertible = self._files(is_named)
        unmatched += self._made.passed_over() if self._made is not None else []
        included = [file for file in files if file not in excluded]
        if not set(included).difference(absent):
            first_absent = [self._absent_line(file) for file in absent[:_MAX_REASONS]]
            reasons = [*first_absent, *absent[_MAX_REASONS:], *unmatched]
            reasons += ["those found lie below MM_STORAGE"] if len(included) < len(files) else []
            rest = f"; and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
            raise FileNotFoundError(
                "no raw shards: "
                f"{'; '.join(reasons[:_MAX_REASONS]) or 'none are named; set MM_RAW_SHARDS'}{rest}"
            )
        stamped = [place for file in included if is_remote(file) for place in (file, *tars_beside(file))]
        stamps |= remote_stamps([place for place in stamped if place not in stamps])
        notes = [*hive_line(included), *convertible_line(convertible)]
        return Listing(self._planned(included, shards_per_partition, stamps), unmatched, notes)

    def _planned(
        self, files: Sequence[str], shards_per_partition: int, stamps: Mapping[str, str]
    ) -> dict[str, RawShard]:
        by_name: dict[str, list[str]] = {}
        for file in files:
            root = self.remote_root if is_remote(file) else self.local_root
            by_name.setdefault(partition_name(file, root), []).append(file)
        groups: dict[str, list[str]] = {}
        for name, same in sorted(by_name.items()) if shards_per_partition > 1 else by_name.items():
            if len(same) == 1:
                groups.setdefault(group_name(name, shards_per_partition), []).append(same[0])
        shards = {name: RawShard(name, tuple(group), stamps=stamps) for name, group in groups.items()}
        for name, same in by_name.items():
            if len(same) > 1:  # in no group; a group that has this name is as unreadable
                others = groups.get(name, [])
                shards[name] = RawShard(name, (*others, *same), True, stamps)
        return shards

    def _elements(self) -> dict[str, bool]:
        """Return all locations with brace lists expanded, and whether each names a single file.

        Folders and patterns must be searched for files.
        """
        for fs in {
            id(fs): fs for fs in (filesystem(item)[0] for item in self._items if is_remote(item))
        }.values():
            fs.invalidate_cache()
        elements = [element for item in self._items for element in self._braces(item)]
        return {element: self._is_named(element) for element in elements}

    def _is_named(self, element: str) -> bool:
        if not element.lower().endswith(NAMED_SUFFIXES) or _PATTERN.search(element):
            return False
        return is_remote(element) or not os.path.isdir(element)

    def _braces(self, item: str) -> Iterable[str]:
        if "{" not in item:
            return [item]
        return [item] if exists(item) else expand_braces(item)

    def _files(self, is_named: Mapping[str, bool]) -> tuple[list[str], set[str], list[str], list[str]]:
        """Return all files in the order of the locations, those of them that are no raw shards, but outputs,
        a line for each location with unread files, and data of other formats."""
        files: list[str] = []
        excluded: set[str] = set()
        unmatched: list[str] = []
        convertible: list[str] = []
        for location in is_named:
            if is_named[location]:
                files.append(location)
                excluded.update([location] if self._is_excluded(location) else ())
                continue
            try:
                found = expand(location, RAW_SUFFIXES)
            except Exception as error:
                if not (isinstance(error, FileNotFoundError | PermissionError) or is_of_store(error)):
                    raise
                unmatched.append(error_line(error))
                continue
            unmatched += found.passed_over
            convertible += [name for name in found.convertible if not self._is_excluded(name)]
            shards = [file for file in found.files if file.lower().endswith(RAW_SUFFIXES)]
            if not shards:
                unmatched.append(
                    f"{location}: no raw shard: the name of one ends in {', '.join(RAW_SUFFIXES)}"
                )
            excluded.update(file for file in shards if self._is_excluded(file))
            included = [file for file in shards if file not in excluded]
            chosen, passed_over = first_kind(without_images(included))
            files += chosen or shards
            unmatched += passed_over_lines(location, chosen, passed_over)
        unmatched += [not_utf8(file) for file in files if not is_utf8(file)]
        return list(dict.fromkeys(file for file in files if is_utf8(file))), excluded, unmatched, convertible

    def _absent_line(self, file: str) -> str:
        try:
            size_of(file)
        except Exception as error:
            if not (isinstance(error, OSError) or is_of_store(error)):
                raise
            if is_of_store(error) or not isinstance(error, FileNotFoundError):
                return error_line(error)
        return f"{file}: no such file"

    def _is_excluded(self, file: str) -> bool:
        if not self._excluded or is_remote(file) != is_remote(self._excluded):
            return False
        real = file if is_remote(file) else self._real_path(file)  # a link may lead into the outputs
        return real.startswith(self._excluded.rstrip("/") + "/")

    def _real_path(self, file: str) -> str:
        if os.path.islink(file):
            return os.path.realpath(file)
        folder, name = os.path.split(file)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return os.path.join(self._real_folders[folder], name)


_NAMED = 3  # files in a line


class RawAbsence:
    """Judge of partitions that a listing of raw shards does not have.

    An unmounted disk, a missing folder, or a pattern that matches less than before must not look as if shards
    were removed. So a shard counts as gone only if, under each root that could hold it, another raw shard is
    listed in its folder or below. Who names a shard vouches for the rest: then it is enough that no file of
    its name can be found.
    """

    def __init__(self, locations: RawLocations, listing: Listing) -> None:
        self._listing = listing
        self._roots = [root for root in locations.roots() if not root.startswith(VIRTUAL_SCHEMES)]
        self._listed = {
            (root, folder)
            for key, shard in listing.items()
            for root in self._roots or [""]
            if any(_is_below(file, root) for file in shard.files)
            for folder in _folders_above(key)
        }
        self._names = cache(self._list)

    def _files_beside(self, key: str) -> Iterator[str]:
        """Yield the listed files whose partitions are in the same folder."""
        folder = posixpath.dirname(key)
        for other, shard in self._listing.items():
            if posixpath.dirname(other) == folder:
                yield from shard.files

    def reason_to_keep(self, key: str, is_named: bool = False) -> str | None:
        """Return why the outputs of a partition must stay, or None: its raw shard is gone.

        Args:
            key: the partition.
            is_named: whether the user has named it.

        Raises:
            OSError: its folder cannot be listed.
        """
        if key in self._listing:
            files = self._listing[key].files
            if is_named and not any(file.startswith(VIRTUAL_SCHEMES) or exists(file) for file in files):
                return None
            return f"{key}: its raw shard exists: {', '.join(files)}"
        if members := [file for file in self._files_beside(key) if own_name(key, file) is not None]:
            return (
                f"{key}: raw shards of this group exist: {', '.join(members[:_NAMED])}; "
                "is MM_SHARDS_PER_PARTITION set as it was?"
            )
        folder, name = posixpath.split(key)
        for root in self._roots:
            place = join(root, folder) if folder else root
            for found in self._names(place):
                if found.startswith(name) and found[len(name) :].lower() in RAW_SUFFIXES:
                    return f"{key}: its raw shard exists, though it is not read: {join(place, found)}"
        unlisted = [root for root in self._roots or [""] if (root, folder) not in self._listed]
        if is_named or not unlisted:
            return None
        places = " or ".join(join(root, folder) if folder else root for root in unlisted)
        return (
            f"{key}: no raw shard can be listed in {places}, "
            "as if a disk were not mounted; name the shard to retire it all the same"
        )

    def _list(self, folder: str) -> tuple[str, ...]:
        fs, path = filesystem(folder)
        fs.invalidate_cache()
        try:
            found = fs.ls(path, detail=False)
        except FileNotFoundError:
            return ()
        return tuple(str(name).rstrip("/").rpartition("/")[2] for name in found)


def _is_below(file: str, root: str) -> bool:
    """Return whether a file lies below a root; every file does below the empty one."""
    if not root:
        return True
    (fs, path), (fs_of_root, path_of_root) = filesystem(file), filesystem(root)
    return type(fs) is type(fs_of_root) and path.startswith(path_of_root)


def _folders_above(key: str) -> Iterator[str]:
    while key:
        key = posixpath.dirname(key)
        yield key
