"""Partitions: groups of input files that become one output file, and the names of the outputs.

Raw shards can also be grouped by the numbers in their names (`group_name`). Neither a shard that comes later
nor one that goes changes another group, or the name of its own.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from mm_assets.formats.names import ARRAY_SUFFIXES, SUFFIXES, format_by_suffix, partition_filename
from mm_assets.formats.webdataset import VIRTUAL_SCHEMES
from mm_assets.storage.files import StorageOptions, is_remote, size_of

_NUMBERED = re.compile(r"(?s)(.*?)([0-9]+)")
_GROUP = re.compile(r"(?s)(.*?)([0-9]+)-([0-9]+)")


def group_name(shard: str, size: int) -> str:
    """Return the name of the group that a shard belongs to: from its first to its last possible member.

    With groups of 100, ``en/web-00217`` belongs to ``en/web-00200-00299``. A shard whose name does not end in
    a number is alone.

    Args:
        shard: name of the shard as a partition.
        size: shards in a group at most.
    """
    if size == 1:  # of 100,000 shards the expression takes seconds
        return shard
    match = _NUMBERED.fullmatch(shard)
    if match is None:
        return shard
    prefix, digits = match.groups()
    first = int(digits) // size * size
    return f"{prefix}{first:0{len(digits)}}-{first + size - 1:0{len(digits)}}"


def member_name(partition: str, shard: str) -> str | None:
    """Return the name of a raw shard as a partition of its own, if ``partition`` is its group; else None.

    Args:
        partition: name of the partition.
        shard: name of a shard in the partition's folder, without that folder and its suffix.
    """
    folder, name = posixpath.split(partition)
    numbered, group = _NUMBERED.fullmatch(shard), _GROUP.fullmatch(name)
    if numbered is None or group is None or numbered[1] != group[1]:
        return None
    first, number, last = (int(digits) for digits in (group[2], numbered[2], group[3]))
    is_member = first <= number <= last and len(group[2]) == len(numbered[2])
    return posixpath.join(folder, shard) if is_member else None


_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_NO_SIZE = 2**63


@dataclass(frozen=True)
class Partition:
    """Input files that become one output file.

    Args:
        name: its name, unescaped, without extension.
        fragments: of a Lance table, the fragments that belong to it (none: all).
        version: of a Lance table, the number of its version, or a tag.
    """

    name: str
    files: tuple[str, ...]
    fragments: tuple[int, ...] = ()
    version: int | str | None = None


def partition_name(file: str, root: str) -> str:
    """Return a file's path below ``root`` without its extension: it does not depend on where the input lies.

    A file with an escaped name of our writers gets the unescaped one: names do not grow from one conversion
    to the next.
    """
    relative = file[len(root) :].lstrip("/") if root and file.startswith(root) else posixpath.basename(file)
    lower = relative.lower()
    suffix = next((suffix for suffix in (*SUFFIXES, *ARRAY_SUFFIXES) if lower.endswith(suffix)), None)
    if suffix is None:
        return relative
    name = relative[: -len(suffix)] or "part"
    is_ours = "%" in name and (found := format_by_suffix(file)) is not None and found.is_named_by_us(file)
    return _unescaped(name) if is_ours else name


def _unescaped(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    plain = unquote(name)
    was_escaped = partition_filename(plain) == name and not {"", ".", ".."} & set(plain.split("/"))
    return folder + slash + (plain if was_escaped else name)


def own_name(partition: str, file: str) -> str | None:
    """Return the name that a file would have as a partition, if ``partition`` is its group; else None."""
    return member_name(partition, partition_name(file, posixpath.dirname(file)))


def id_prefix(prefix: str | None, partition: str, files: Sequence[str], file: str) -> str:
    """Return the prefix of a file's sample ids: its partition's name, or "" where ``prefix`` is None.

    When a partition has several files, the file's own name follows: ids may start again in each file. In a
    group of raw shards it is the shard's own name alone: ids do not depend on the size of groups.
    """
    if prefix is None:
        return ""
    if (member := own_name(partition, file)) is not None:
        return f"{member}/"
    return f"{partition}/" if len(files) == 1 else f"{partition}/{partition_name(file, common_root(files))}/"


def ref_path(uri: str, relative_to: str | None) -> str:
    """Return the path of a file in locators: relative to ``relative_to``, or as it is."""
    return uri.removeprefix(f"{relative_to.rstrip('/')}/") if relative_to else uri


def relative_root(roots: Sequence[str]) -> str | None:
    """Return the root that locators are stored relative to: local, or that of virtual shards."""
    return next((root for root in roots if not is_remote(root) or root.startswith(VIRTUAL_SCHEMES)), None)


def common_root(files: Sequence[str]) -> str:
    """Return the deepest folder (or URL prefix) that holds all files; empty when there is none."""
    folders = [posixpath.dirname(file).split("/") for file in files]
    shared = folders[0] if folders else []
    for folder in folders[1:]:
        length = 0
        while length < min(len(shared), len(folder)) and shared[length] == folder[length]:
            length += 1
        shared = shared[:length]
    return "/".join(shared)


def root_of_locations(locations: Sequence[str], suffixes: tuple[str, ...]) -> str:
    """Return the deepest folder (or URL prefix) of all locations above any pattern.

    For ``/data/*/x.tar`` it is ``/data``. It depends on the locations alone, not on the files found, so a
    file that is added later renames no partition.
    """
    return common_root([f"{_static_prefix(location, suffixes)}/" for location in locations])


def _static_prefix(location: str, suffixes: tuple[str, ...]) -> str:
    if not is_remote(location) and os.path.isdir(location):
        return location.rstrip("/")
    start = min((at for character in "*?[{" if (at := location.find(character)) >= 0), default=len(location))
    is_folder = start == len(location) and not location.lower().endswith(suffixes)
    return location.rstrip("/") if is_folder else location[:start].rpartition("/")[0]


def plan_partitions(
    files: Sequence[str],
    files_per_partition: int | None = None,
    blocksize: int | str | None = None,
    options: StorageOptions | None = None,
    root_of: Callable[[str], str] | None = None,
) -> list[Partition]:
    """Group files into partitions, in the order given; by default each file is one.

    A partition is named after its first file (and how many more there are), relative to ``root_of`` that
    file, or to the common root.

    Args:
        files_per_partition: number of files in each group.
        blocksize: bytes of a group at most, as a number or text (`parse_bytes`); a larger file is alone in
            its group.
        root_of: returns the root of a file.

    Raises:
        ValueError: for both limits at once, an invalid one, and two partitions of one name.
    """
    if files_per_partition is not None and blocksize is not None:
        raise ValueError("give files_per_partition or blocksize, not both")
    if files_per_partition is not None and files_per_partition < 1:
        raise ValueError(f"files_per_partition must be at least 1, not {files_per_partition}")
    if blocksize is not None:
        groups = _group_by_bytes(files, parse_bytes(blocksize), options)
    else:
        step = files_per_partition or 1
        groups = [list(files[at : at + step]) for at in range(0, len(files), step)]
    root = "" if root_of else common_root(files)
    partitions = [
        Partition(_group_name(group, root_of(group[0]) if root_of else root), tuple(group))
        for group in groups
    ]
    refuse_equal_names(partitions)
    return partitions


def refuse_equal_names(partitions: Sequence[Partition]) -> None:
    """Refuse two partitions of one name: the second output would overwrite the first.

    Raises:
        ValueError: naming the files of both.
    """
    names = Counter(partition.name for partition in partitions)
    if twice := [name for name, count in names.items() if count > 1]:
        files = ", ".join(file for p in partitions if p.name == twice[0] for file in p.files)
        raise ValueError(
            f"two inputs would both become partition {twice[0]!r}: {files}; rename one, or convert them apart"
        )


def parse_bytes(size: int | str) -> int:
    """Return a size in bytes, given as ``"512MiB"`` or a number.

    Raises:
        ValueError: for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(size))
    number = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0
    if not 0 < number < _NO_SIZE:
        raise ValueError(f"not a size in bytes: {str(size)[:100]!r} (write 1048576, '64MiB' or '1GB')")
    return int(number)


def _group_by_bytes(files: Sequence[str], limit: int, options: StorageOptions | None) -> list[list[str]]:
    groups: list[list[str]] = []
    filled = 0
    for file in files:
        size = size_of(file, options)
        if groups and filled + size <= limit:
            groups[-1].append(file)
            filled += size
        else:
            groups.append([file])
            filled = size
    return groups


def _group_name(group: Sequence[str], root: str) -> str:
    name = partition_name(group[0], root)
    return name if len(group) == 1 else f"{name}+{len(group) - 1}"
