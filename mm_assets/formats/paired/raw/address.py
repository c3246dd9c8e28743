"""Addresses of paired shards: one URL for equally named tars in several folders, one per modality."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlencode

from mm_assets.formats.absent_paths import absent
from mm_assets.formats.brace_lists import expand_braces
from mm_assets.formats.error_places import located
from mm_assets.formats.listing import packed_line, pairs_of_url
from mm_assets.formats.local_tree import is_metadata_folder
from mm_assets.formats.storage import absolute, exists, filesystem, join
from mm_assets.formats.tar.suffixes import TAR_SUFFIXES
from mm_assets.formats.webdataset.layout import MERGED_PROTOCOL

MISSING_KEY_POLICIES = ("skip", "partial", "error")

_MODALITY = re.compile(r"(?P<name>[^\W\d]\w*)=(?P<location>.+)", re.DOTALL)
_PATTERN = re.compile(r"[*?\[{]")
_GLOB = re.compile(r"[*?\[]")
_POLICY = "missing key policy"  # cannot be the name of a modality: it has spaces


@dataclass(frozen=True)
class PairedAddress:
    """Locations of each modality's tars, and the policy for keys that some of them lack.

    A location is a folder or URL prefix, or a pattern of file names (``*``, braces) in one. Tars are paired
    by their names without suffix.

    Raises:
        ValueError: There are fewer than two modalities, the policy is unknown, or a folder is a pattern.
    """

    locations: Mapping[str, str]
    missing_key_policy: str = "skip"

    def __post_init__(self) -> None:
        if self.missing_key_policy not in MISSING_KEY_POLICIES:
            raise ValueError(
                f"the policy for missing keys is one of {', '.join(MISSING_KEY_POLICIES)}, "
                f"not {self.missing_key_policy!r}"
            )
        if len(self.locations) < 2:
            raise ValueError(
                f"paired shards have at least two modalities, not {', '.join(self.locations) or 'none'}"
            )
        for name, location in self.locations.items():
            folder, _ = _split(location)
            if _PATTERN.search(folder):
                raise ValueError(
                    f"modality {name!r}: {location}: only the file's name can be a pattern, not its folder"
                )

    @property
    def url(self) -> str:
        """The address as a URL: a folder with one tar per name."""
        return (
            f"{MERGED_PROTOCOL}://{urlencode([*self.locations.items(), (_POLICY, self.missing_key_policy)])}"
        )

    @property
    def places(self) -> list[str]:
        """The locations of all modalities."""
        return list(self.locations.values())

    @classmethod
    def parse(cls, token: str) -> PairedAddress:
        """Return the address whose `url` has ``token`` after its scheme."""
        pairs = pairs_of_url(MERGED_PROTOCOL, token, "MODALITY=FOLDER")
        return cls(dict(pairs[:-1]), pairs[-1][1])

    def names(self) -> dict[str, dict[str, list[str]]]:
        """Return the tars of each modality that has any, by name without suffix, sorted.

        Raises:
            FileNotFoundError: A folder does not exist.
        """
        found: dict[str, dict[str, list[str]]] = {}
        for modality, location in self.locations.items():
            for stem, files in _tars(location).items():
                tars = found.setdefault(stem, {})
                if files:
                    tars[modality] = files
        return dict(sorted(found.items()))

    def passed_over(self) -> list[str]:
        """Return a line for everything that is not read.

        That is each modality with tars in an unsupported compression, and each subfolder.
        """
        lines: list[str] = []
        for modality, location in self.locations.items():
            folder, selection = _split(location)
            entries = _entries(folder)
            lines += packed_line(
                location,
                [join(folder, name) for name, is_folder in entries if name in selection and not is_folder],
            )
            if selection == _ALL:
                subfolders = [
                    name for name, is_folder in entries if is_folder and not is_metadata_folder(name)
                ]
                hint = f"not read: below the folder of modality {modality!r}; move its tars up into that"
                lines += [f"{join(folder, name)}: {hint}" for name in subfolders]
        return lines

    def parts(self, stem: str) -> dict[str, list[str]]:
        """Return the tars of one name by modality, without listing all others."""
        return {
            modality: files
            for modality, location in self.locations.items()
            if (files := _tars_of_stem(stem, location))
        }


def modality_of(item: str) -> tuple[str, str] | None:
    """Return name and location of an item ``images=/data/images``; None for any other item (a path)."""
    match = _MODALITY.fullmatch(item)
    if match is None:
        return None
    location = match["location"]
    return match["name"], absolute(location)


def parts_of(url: str) -> dict[str, str]:
    """Return the URLs of the tars that a merged tar is made of, by their names in locators."""
    root, _, name = url.rpartition("/")
    if not root.startswith(f"{MERGED_PROTOCOL}://"):
        return {}
    parts = PairedAddress.parse(root.removeprefix(f"{MERGED_PROTOCOL}://")).parts(name.removesuffix(".tar"))
    part_names = [
        f"{modality}/{os.path.basename(file)}" for modality, files in parts.items() for file in files
    ]
    return {name: f"{root}/{name}" for name in part_names}


def stem_of(name: str) -> str:
    """Return a tar's name without its suffix; empty for a file that is no tar."""
    return next((name[: -len(suffix)] for suffix in TAR_SUFFIXES if name.lower().endswith(suffix)), "")


@dataclass(frozen=True)
class _Selection:
    """The file names that a location selects: literal names, and patterns."""

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return not name.startswith(".") and (
            name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)
        )


_ALL = _Selection(patterns=("*",))


@functools.lru_cache(maxsize=16)  # a brace list may be long, and it is expanded again for each of its tars
def _split(location: str) -> tuple[str, _Selection]:
    """Return the folder of a location, and the selection of files in it."""
    head, _, last = location.rstrip("/").rpartition("/")
    if not _PATTERN.search(last) and not last.lower().endswith(TAR_SUFFIXES):
        return location.rstrip("/"), _ALL
    names = expand_braces(last)
    patterns = tuple(name for name in names if _GLOB.search(name))
    return head, _Selection(frozenset(names).difference(patterns), patterns)


def _tars(location: str) -> dict[str, list[str]]:
    """Return the tars of a location as they are now, by stem."""
    folder, selection = _split(location)
    # A tar named literally is a partition even if it does not exist.
    tars: dict[str, list[str]] = {stem_of(name): [] for name in selection.names if stem_of(name)}
    for name, is_folder in _entries(folder):
        if stem_of(name) and name in selection and not is_folder:
            tars.setdefault(stem_of(name), []).append(join(folder, name))
    return tars


def _entries(folder: str) -> list[tuple[str, bool]]:
    """Return the names in a folder or URL prefix as they are now, sorted, each with a flag for folders.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    fs, path = filesystem(folder)
    fs.invalidate_cache()  # fsspec caches listings of object stores for the life of a process
    try:
        with located(folder):
            found = fs.ls(path, detail=True)
    except FileNotFoundError as error:
        raise absent(folder, fs, path, "folder") from error
    # A store may list the prefix itself.
    inside = [info for info in found if info["name"].rstrip("/") != path.rstrip("/")]
    return sorted(
        (info["name"].rstrip("/").rpartition("/")[2], info["type"] == "directory") for info in inside
    )


def _tars_of_stem(stem: str, location: str) -> list[str]:
    """Return the tars of one stem."""
    folder, selection = _split(location)
    names = [f"{stem}{suffix}" for suffix in TAR_SUFFIXES]
    found = [name for name in names if name in selection and exists(join(folder, name))]
    # The full listing finds suffixes in upper case as well.
    return [join(folder, name) for name in found] or _tars(location).get(stem, [])
