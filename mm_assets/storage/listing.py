"""Listing of the files that a path, folder, pattern, brace list or URL names.

`LocalTree` has the files and folders below a local folder, those behind links included. `sizes_below` has
all files, whatever they are.
"""

from __future__ import annotations

import glob
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from fsspec import AbstractFileSystem
from fsspec.utils import glob_translate

from mm_assets.formats.names import (
    PACKED_TAR_SUFFIXES,
    PLAN_FILE,
    RAW_SUFFIXES,
    SET_NOTES,
    TABLE_SUFFIXES,
    TAR_SUFFIXES,
    format_by_suffix,
    is_parquet,
)
from mm_assets.model.errors import first_and_more, warn_user
from mm_assets.storage import canonical_url, clean_url, expand_braces
from mm_assets.storage.errors import absent, error_line, located
from mm_assets.storage.files import StorageOptions, filesystem, is_remote, local_path

# The folder in which `mm-assets convert` lists what it left out, inside the output folder. Other names that
# begin with an underscore belong to the user.
LEDGER_BESIDE = "_ledger"


class LocalTree:
    """All ``files`` and ``folders`` below a local folder.

    Hidden ones, each `is_metadata_folder`, plans of training sets and the contents of Lance tables are left
    out. Links to folders are followed after all other folders, and no folder is searched twice.
    ``passed_over`` has a line for each link that is not followed because it leads to a parent folder, and for
    each folder that cannot be listed.

    Raises:
        OSError: the folder itself cannot be listed.
    """

    def __init__(self, root: str) -> None:
        self.files: list[str] = []
        self.folders: list[str] = []
        self.passed_over: list[str] = []
        self._root = os.path.realpath(root)
        self._known = {self._root}
        self._waiting = deque([(root, self._root)])  # path, and the same without links
        self._links: deque[str] = deque()
        self._list(*self._waiting.popleft())
        while self._waiting or self._links:
            if self._waiting:
                path, real = self._waiting.popleft()
                try:
                    self._list(path, real)
                except OSError as error:
                    self.passed_over.append(f"{path}: not looked into: {error.strerror}")
            else:
                self._follow(self._links.popleft())
        self.files.sort()
        self.folders.sort()

    def _list(self, path: str, real: str) -> None:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        plan = {PLAN_FILE} if any(entry.name == SET_NOTES for entry in entries) else set()
        for entry in entries:
            is_link = entry.is_symlink()
            if not (os.path.isdir(entry.path) if is_link else entry.is_dir()):
                if not entry.name.startswith(".") and entry.name not in plan:
                    self.files.append(entry.path)
            elif not is_metadata_folder(entry.name):
                self.folders.append(entry.path)
                if entry.name.endswith(TABLE_SUFFIXES):
                    continue
                if is_link:
                    self._links.append(entry.path)
                else:
                    self._enter(entry.path, os.path.join(real, entry.name))

    def _follow(self, link: str) -> None:
        real = os.path.realpath(link)
        if os.path.commonpath([real, self._root]) == real:
            self.passed_over.append(f"{link}: a link to a folder above it, not followed")
        else:
            self._enter(link, real)

    def _enter(self, path: str, real: str) -> None:
        if real not in self._known:
            self._known.add(real)
            self._waiting.append((path, real))


def is_metadata_folder(folder: str) -> bool:
    """Return whether a folder of this name holds no data: it is hidden, or the ledger of converted data."""
    return folder.startswith(".") or folder == LEDGER_BESIDE


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_GLOB = re.compile(r"[*?\[]")
_ANY_DEPTH = "/**"
_HIVE_FOLDER = re.compile(r"(.*/[A-Za-z_]\w*=[^/]*)/")


@dataclass
class Expansion:
    """Files, and a line for each thing that looks like data but is not read.

    ``passed_over`` names tars packed in unsupported ways and folders that are not searched. ``convertible``
    are the data of formats other than those asked for, where raw shards are: these could be made of them.
    """

    files: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    convertible: list[str] = field(default_factory=list)

    def add(self, other: Expansion) -> None:
        """Append another expansion."""
        self.files += other.files
        self.passed_over += other.passed_over
        self.convertible += other.convertible

    def require(self, reason: str = "") -> Expansion:
        """Return the expansion itself.

        Raises:
            FileNotFoundError: it has no files; the message has ``reason`` and what was passed over.
        """
        if not self.files:
            lines = [reason, *self.passed_over, *convertible_line(self.convertible)]
            raise FileNotFoundError("; ".join(filter(None, lines)))
        return self


def expand_paths(paths: Paths, suffixes: tuple[str, ...], options: StorageOptions | None = None) -> list[str]:
    """Return the files of `expand`, with a warning for each thing passed over and for `hive_line`."""
    found = expand(paths, suffixes, options)
    for line in (*found.passed_over, *hive_line(found.files)):
        warn_user(line)
    return found.files


def expand(paths: Paths, suffixes: tuple[str, ...], options: StorageOptions | None = None) -> Expansion:
    """List the files of a path, folder, glob, brace list or URL, or a list of them, each element sorted.

    A folder gives all its files with one of ``suffixes`` (in any case), at any depth, also behind links: see
    `LocalTree`. So does a folder that a pattern matches. Hidden files and folders are left out, and each
    `is_metadata_folder`. A pipe, a device, or a folder named like a file but without such files is returned
    as it is: reading it fails. An existing name is taken literally before it is read as a pattern.

    Raises:
        FileNotFoundError: an element matches nothing; the message names it.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = Expansion()
    for item in [clean_url(os.fspath(path)) for path in given]:
        with located(item):
            found.add(_expand_one(item, suffixes, options))
    lists = (found.files, found.passed_over, found.convertible)
    return Expansion(*(list(dict.fromkeys(names)) for names in lists))


def names_in(folder: str, options: StorageOptions | None = None) -> list[str]:
    """List the files below a folder or URL prefix, and its Lance tables."""
    if not is_remote(folder):
        tree = LocalTree(_absolute(folder))
        return tree.files + [name for name in tree.folders if name.endswith(TABLE_SUFFIXES)]
    fs, path = filesystem(folder, options)
    names: list[str] = []
    for _, folders, files in fs.walk(path):
        files = [name for name in files if name != PLAN_FILE or SET_NOTES not in folders]
        names += [*files, *(name for name in folders if name.endswith(TABLE_SUFFIXES))]
        for name in [name for name in folders if name.endswith(TABLE_SUFFIXES) or is_metadata_folder(name)]:
            folders.pop(name) if isinstance(folders, dict) else folders.remove(name)
    return names


def matching(pattern: str, options: StorageOptions | None = None) -> list[str]:
    """Return the files and folders that match a pattern, sorted."""
    return _matches(pattern, options)[0]


def sizes_below(folders: Iterable[str], skip: Iterable[str], unread: dict[str, str]) -> dict[str, int]:
    """Return all files below folders and their sizes, each once: hidden ones and those behind links, too.

    Args:
        folders: paths or URLs; one that does not exist has no files.
        skip: files to leave out.
        unread: gets the folders that cannot be listed, each with the reason.
    """
    sizes: dict[str, int] = {}
    known = {path if is_remote(path) else os.path.realpath(local_path(path)) for path in skip}

    def is_new(path: str) -> bool:
        is_known = (real := os.path.realpath(path)) in known
        known.add(real)
        return not is_known

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            unread[str(error.filename)] = error_line(error)

    for folder in folders:
        if is_remote(folder):
            fs, path = filesystem(folder)
            fs.invalidate_cache()
            files = {fs.unstrip_protocol(name): info for name, info in fs.find(path, detail=True).items()}
            sizes |= {name: int(info["size"] or 0) for name, info in files.items() if name not in known}
            continue
        for above, below, names in os.walk(local_path(folder), onerror=refused, followlinks=True):
            if not is_new(above):
                below.clear()
                continue
            for path in (os.path.join(above, name) for name in names):
                with suppress(FileNotFoundError):  # removed meanwhile
                    if os.path.isfile(path) and is_new(path):
                        sizes[path] = os.path.getsize(path)
    return sizes


def packed_line(place: str, names: Iterable[str]) -> list[str]:
    """Return one line on the tars among ``names`` that are packed in an unsupported way; none without."""
    packed = [name for name in names if name.lower().endswith(PACKED_TAR_SUFFIXES)]
    if not packed:
        return []
    which = (
        f"{packed[0]}: a tar"
        if len(packed) == 1
        else f"{place}: {len(packed)} tars, the first of them {packed[0]},"
    )
    return [f"{which} packed in a way that is not read: pack with gzip, or not at all"]


def pdf_line(folder: str, names: Iterable[str]) -> list[str]:
    """Return one line on the PDFs among ``names``, which have to be named as such; none without."""
    pdfs = [name for name in names if name.lower().endswith(".pdf")]
    return [f"{folder}: PDFs are named as pdf={folder}"] if pdfs else []


def hive_line(files: Iterable[str]) -> list[str]:
    """Return one line if folders of Parquet files are named as columns; none without."""
    parquet = (file for file in files if is_parquet(file))
    found = next(filter(None, map(_HIVE_FOLDER.match, parquet)), None)
    if found is None:
        return []
    return [f"{found[1]}: such names of folders become no columns; ids that are made begin with them"]


def convertible_line(names: Sequence[str]) -> list[str]:
    """Return one line on data that are no raw shards, but could be made some; none without."""
    if not names:
        return []
    cure = "make raw shards of it first, with mm-assets convert SRC DST --to parquet"
    return [f"{first_and_more(names)}: not read: {cure}"]


def pairs_of_url(scheme: str, token: str, typed: str) -> list[tuple[str, str]]:
    """Return the pairs that the URL of an address of ours consists of.

    Args:
        scheme: of the URL.
        token: what the URL has after its scheme.
        typed: how users name such locations, for the message.

    Raises:
        ValueError: someone else wrote the URL.
    """
    try:
        return parse_qsl(token, strict_parsing=True)
    except ValueError as error:
        raise ValueError(f"{scheme}://{token}: no location: it is named as {typed}") from error


def unread_caches(names: Iterable[str]) -> list[str]:
    """Return a line for each folder that holds shards of an Arrow cache, but not its ``_metadata.json``."""
    names = list(names)
    folders = dict.fromkeys(os.path.dirname(name) for name in names if name.lower().endswith(".arrow"))
    complete = {os.path.dirname(name) for name in names if os.path.basename(name) == "_metadata.json"}
    return [
        f"{folder}: not read: a cache without its _metadata.json; make it again"
        for folder in folders
        if folder not in complete
    ]


def _expand_one(item: str, suffixes: tuple[str, ...], options: StorageOptions | None) -> Expansion:
    found = _existing(item, suffixes, options)
    if found is not None:
        return found
    result = Expansion()
    for pattern in expand_braces(item) if "{" in item else [item]:
        matched = _matched(pattern, suffixes, options)
        if not matched.files and not matched.passed_over:
            raise absent(pattern, *filesystem(pattern, options))
        result.add(matched.require())
    return result


def _existing(item: str, suffixes: tuple[str, ...], options: StorageOptions | None) -> Expansion | None:
    """Return an existing file, or the files of an existing folder; None where nothing has this name.

    Raises as `expand` does.
    """
    nothing = f"{item}: no {'/'.join(suffixes)} file in this folder"
    if not is_remote(item):
        path = _absolute(item)
        if os.path.isdir(path):
            return _in_folder(path, suffixes).require(nothing)
        return _one_file(local_path(item), suffixes).require() if os.path.exists(path) else None
    fs, path = filesystem(item, options)
    if fs.isfile(path):
        return _one_file(item, suffixes).require()
    if fs.isdir(path):
        stored = fs.find(path)
        plans = {
            f"{name.partition(f'/{SET_NOTES}/')[0]}/{PLAN_FILE}"
            for name in stored
            if f"/{SET_NOTES}/" in name
        }
        names = [name for name in stored if not _is_hidden(name, path) and name not in plans]
        names = [_address(fs, name) for name in names]
        lists = (_chosen(names, suffixes), _unread(item, names, suffixes), _convertible(names, suffixes))
        return Expansion(*lists).require(nothing)
    return None


def _one_file(name: str, suffixes: tuple[str, ...]) -> Expansion:
    packed = _unread(name, [name], suffixes)
    return Expansion([] if packed else [name], packed)


def _in_folder(folder: str, suffixes: tuple[str, ...]) -> Expansion:
    tree = LocalTree(folder)
    files = _chosen(tree.files, suffixes)
    called_like_files = [
        name
        for name in _chosen(tree.folders, suffixes)
        if not any(file.startswith(f"{name}/") for file in files)
    ]
    passed_over = [*_unread(folder, tree.files, suffixes), *tree.passed_over]
    if not files:
        passed_over += pdf_line(folder, tree.files)
    convertible = _convertible([*tree.files, *tree.folders], suffixes)
    return Expansion(sorted(files + called_like_files), passed_over, convertible)


def _matched(pattern: str, suffixes: tuple[str, ...], options: StorageOptions | None) -> Expansion:
    """Return the files that match a pattern, and those in matching folders.

    Files of other suffixes only count where there are no others.
    """
    names, passed_over = _matches(pattern, options)
    found = Expansion(passed_over=passed_over)
    for name in names:
        if is_remote(name) or not os.path.isdir(name):
            found.add(_one_file(name, suffixes))
        elif not is_metadata_folder(os.path.basename(name)):
            inside = _in_folder(name, suffixes)
            found.add(
                inside
                if inside.files or not name.lower().endswith(suffixes)
                else Expansion([name], inside.passed_over)
            )
    with_suffix = [name for name in found.files if name.lower().endswith(suffixes)]
    return Expansion(with_suffix or found.files, found.passed_over, found.convertible)


def _matches(pattern: str, options: StorageOptions | None) -> tuple[list[str], list[str]]:
    """Return the files and folders that match a pattern, sorted, and what `LocalTree` passed over.

    A name without wildcards matches if it exists.
    """
    if is_remote(pattern):
        fs, path = filesystem(pattern, options)
        names = fs.glob(path) if _GLOB.search(path) else [path] if fs.isfile(path) else []
        if not os.path.basename(path).startswith("."):  # as in a local folder
            names = [name for name in names if not os.path.basename(name).startswith(".")]
        return sorted(_address(fs, name) for name in names), []
    path = _absolute(pattern)
    if not _GLOB.search(path):
        return [path] if os.path.exists(path) else [], []
    if _ANY_DEPTH not in path:
        return sorted(glob.glob(path)), []
    head, _, tail = path.partition(_ANY_DEPTH)
    matches = re.compile(glob_translate(f"**{tail}")).match
    found: list[str] = []
    passed_over: list[str] = []
    for base in filter(os.path.isdir, glob.glob(head or "/")):
        tree = LocalTree(base)
        found += [name for name in tree.files + tree.folders if matches(name[len(base) :].lstrip("/"))]
        passed_over += tree.passed_over
    return sorted(found), passed_over


def _address(fs: AbstractFileSystem, path: str) -> str:
    return clean_url(canonical_url(fs.unstrip_protocol(path)))


def _chosen(names: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(suffixes))


def _unread(place: str, names: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
    names = list(names)
    packed = packed_line(place, names) if set(TAR_SUFFIXES) <= set(suffixes) else []
    return packed + (unread_caches(names) if suffixes == ("/_metadata.json",) else [])


def _convertible(names: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    if suffixes != RAW_SUFFIXES:
        return []
    found = ((name, format_by_suffix(name)) for name in names)
    others = (entry.output(name) for name, entry in found if entry and not name.lower().endswith(suffixes))
    return sorted(set(others))


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(local_path(path)))


def _is_hidden(name: str, root: str) -> bool:
    *folders, file = name[len(root) :].split("/")
    return file.startswith(".") or any(map(is_metadata_folder, folders))
