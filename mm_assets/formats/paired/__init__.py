"""Paired tars: samples whose modalities are in separate tars. Here they are merged into one tar.

There are two ways from such tars to samples. They only share the scan of a tar (`mm_assets.formats.tar`).

* The merge is for curation. It makes one tar of interleaved samples, in the native layout, that accounts for
  every member: hidden files, members without a key, damaged ranges and keys that a tar lacks become records.
* `joined_tars` is for training.

The merge has:

* `PairedAddress`: one URL for equally named tars in several folders, one per modality.
* `PairedFileSystem`: the read-only fsspec file system ``paired://``, in which such tars appear as one merged
  tar.
* `Columns`: passthrough columns of a shard, with one type per column for all its samples.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import IO, Any, ClassVar
from urllib.parse import urlencode

import pyarrow as pa
from fsspec.spec import AbstractFileSystem

from mm_assets.formats.names import TAR_SUFFIXES, sample_key
from mm_assets.formats.paired.merged_tar import (
    KeyContent,
    ModalityTar,
    SampleMember,
    content_of,
    members_by_key,
    members_without_key,
)
from mm_assets.formats.tar import FileRange, TarWriter
from mm_assets.formats.tar.scan import scan_tolerant
from mm_assets.formats.tar.spool import open_tar
from mm_assets.formats.webdataset import MERGED_PROTOCOL, SOURCE, SampleError, native_payload
from mm_assets.formats.webdataset.virtual_tars import (
    refusal,
    virtual_file,
    virtual_info,
    write_unpaired,
    write_unread,
)
from mm_assets.model import json_codec
from mm_assets.model.errors import BAD_LAYOUT, MISSING_MODALITY, DataError
from mm_assets.model.json_codec import FieldTally, build_column, dumps, is_json, json_field
from mm_assets.model.schema import schema_to_text
from mm_assets.storage import expand_braces
from mm_assets.storage.errors import absent, located
from mm_assets.storage.files import absolute, exists, filesystem, join, open_binary, size_of
from mm_assets.storage.listing import is_metadata_folder, packed_line, pairs_of_url


class Columns:
    """Type inference for the columns of one shard.

    JSON fields get the type that holds the values of all samples. Arrays keep their own type; arrays of
    several types of one kind get the widest type that holds all. Otherwise the column is JSON text.
    """

    def __init__(self) -> None:
        self._tallies: dict[str, FieldTally] = {}
        self._typed: dict[str, list[pa.DataType]] = {}
        self._declared: tuple[pa.Schema, str] | None = None

    def observe(self, content: KeyContent) -> None:
        """Add the columns of one sample."""
        for name, value in content.fields.items():
            self._tallies.setdefault(name, FieldTally()).observe(value)
        for name, value in content.typed.items():
            types = self._typed.setdefault(name, [])
            if value.type not in types:
                types.append(value.type)

    def declared(self) -> tuple[pa.Schema, str]:
        """Return the schema, and the same as text. It is fixed by the first call."""
        if self._declared is None:
            fields = [
                json_field(name) if name == SOURCE else tally.field(name)
                for name, tally in self._tallies.items()
            ]
            fields = [field for field in fields if field.name not in self._typed]
            fields += [self._field(name, types) for name, types in self._typed.items()]
            schema = pa.schema(fields)
            self._declared = schema, schema_to_text(schema)
        return self._declared

    def _field(self, name: str, types: list[pa.DataType]) -> pa.Field:
        json_type = self._tallies[name].field(name).type if name in self._tallies else pa.null()
        widest = functools.reduce(_widest, types)
        return (
            json_field(name) if widest is None or not pa.types.is_null(json_type) else pa.field(name, widest)
        )

    def encoded(self, content: KeyContent, key: str) -> dict[str, Any]:
        """Return the values of a sample as its json has them.

        Raises:
            SampleError: A value is bytes where other samples have other values.
        """
        schema, _ = self.declared()
        values: dict[str, Any] = {}
        for name, value in content.fields.items():
            column = schema.field(name)
            values[name] = json_codec.encode(build_column([value], column), column)[0]
        for name, array in content.typed.items():
            column = schema.field(name)
            if is_json(column) and pa.types.is_large_binary(array.type):
                raise SampleError(
                    BAD_LAYOUT, f"sample {key!r}: column {name!r} is bytes, in others of the shard it is not"
                )
            if is_json(column):
                array = build_column(json_codec.encode(array, pa.field(name, array.type)), column)
            else:
                array = array.cast(column.type)
            values[name] = json_codec.encode(array, column)[0]
        return values


def _widest(one: pa.DataType | None, other: pa.DataType) -> pa.DataType | None:
    """Return the type of nested lists that holds the numbers of both exactly; None if there is none."""
    if one is None or one == other:
        return one
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _widest(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return pa.float64()
    if pa.types.is_integer(one) and pa.types.is_integer(other) and pa.uint64() not in (one, other):
        return pa.int64()
    return None


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

    protocol: ClassVar[str] = MERGED_PROTOCOL
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

    def originals(self, stem: str) -> list[str]:
        """Return the names in locators of the tars that a merged tar is made of."""
        parts = self.parts(stem).items()
        return [f"{modality}/{os.path.basename(file)}" for modality, files in parts for file in files]

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


def merge(parts: Sequence[ModalityTar], target: str | os.PathLike[str], missing_key_policy: str) -> None:
    """Write one sample for each key of any part, in the order of the first part.

    Image members become image items, ``.txt`` members text items. Their positions are those in their
    extensions (``0.jpg``), else they follow in the order of the parts. The fields of ``.json`` and the values
    of ``.npy``, ``.cls`` and all other members become columns of the metadata row. A damaged range of a part,
    and a sample that cannot be read, each give a sample that readers refuse and account for. Members without
    a key become unreferenced members.

    Memory: the json and arrays of one sample. Images are copied from file to file.

    Args:
        parts: The tars, one per modality.
        target: Path of the merged tar.
        missing_key_policy: What to do with a key that a part lacks. ``skip`` gives a sample that readers
            refuse and account for, ``partial`` gives what there is, ``error`` raises.

    Raises:
        DataError: The policy is ``error`` and a part lacks a key.
    """
    keys = members_by_key(parts)
    if missing_key_policy == "error":
        _refuse_mismatch(parts, keys)
    columns = Columns()
    for key, found in keys.items():
        with suppress(SampleError):  # reported below
            columns.observe(_content(key, parts, found, missing_key_policy))
    with TarWriter(target) as tar:
        for key, found in keys.items():
            stem = sample_key(key)
            members: list[tuple[str, FileRange]] = []
            try:
                content = _content(key, parts, found, missing_key_policy)
                payload = _payload(key, stem, content, columns)
                members = [
                    (f"{stem}.{at}.{image.suffix}", image.range)
                    for at, image in sorted(content.images.items())
                ]
            except SampleError as error:
                reason = f"{error} (its members: {', '.join(one.where for one in found)})"
                payload = refusal(key, error.kind, reason, error.source_ref or found[0].ref)
            tar.write_group([*members, (f"{stem}.json", dumps(payload).encode())])
        for part in parts:
            write_unread(tar, part.name, part.index)
            for member in members_without_key(part):
                where = f"{part.name}: {member.name}"
                write_unpaired(tar, f"{part.modality}/{member.name}", where, member.ref, member.reason)


def _content(
    key: str, parts: Sequence[ModalityTar], found: Sequence[SampleMember], missing_key_policy: str
) -> KeyContent:
    if missing_key_policy == "skip":
        _refuse_missing(key, parts, found)
    return content_of(found)


def _missing(parts: Sequence[ModalityTar], found: Sequence[SampleMember]) -> list[ModalityTar]:
    present = {member.part.modality for member in found}
    return [part for part in parts if part.modality not in present]


def _refuse_mismatch(parts: Sequence[ModalityTar], keys: Mapping[str, Sequence[SampleMember]]) -> None:
    for key, found in keys.items():
        if missing := _missing(parts, found):
            raise DataError(
                f"key mismatch across modalities: {key!r} is in {found[0].part.name}, "
                f"not in {missing[0].name}"
            )


def _refuse_missing(key: str, parts: Sequence[ModalityTar], found: Sequence[SampleMember]) -> None:
    if missing := _missing(parts, found):
        names = ", ".join(part.name for part in missing)
        raise SampleError(MISSING_MODALITY, f"{found[0].where}: no member of key {key!r} in {names}")


def _payload(key: str, stem: str, content: KeyContent, columns: Columns) -> dict[str, Any]:
    length = max([*content.texts, *content.images], default=-1) + 1
    texts: list[str | None] = [None] * length
    images: list[str | None] = [None] * length
    rows: dict[str, Any] = {"metadata": {}, "text": {}, "image": {}}
    refs: list[str] = []
    if content.ref is not None:
        refs.append(content.ref)
        rows["metadata"] = {"ref": 0}
    for position, (text, found) in sorted(content.texts.items()):
        texts[position] = text
        rows["text"][str(position)] = {"ref": len(refs)}
        refs.append(found.ref)
    for position, found in sorted(content.images.items()):
        images[position] = f"{position}.{found.suffix}"
        rows["image"][str(position)] = {"ref": len(refs)}
        refs.append(found.ref)
    sample_id = key if content.sample_id is None else content.sample_id
    extra, types = {"metadata": columns.encoded(content, key)}, columns.declared()[1]
    return native_payload(sample_id, stem, texts, images, extra, [], types, refs, rows)


_SUFFIX = ".tar"
_REVISION = "2"  # of the content of merged tars: part of their identity, so a new one makes outputs again


class PairedFileSystem(AbstractFileSystem):
    """``paired://ADDRESS``: a folder with a merged tar ``NAME.tar`` for each name that a modality has.

    A merged tar is made when it is opened. ``paired://ADDRESS/MODALITY/FILE`` is a modality's original tar,
    as named by locators. See `PairedAddress` and `merge`.
    """

    protocol = MERGED_PROTOCOL

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        address, name = self._parsed(path)
        if name:
            info = self.info(path)
            return [info if detail else info["name"]]
        token = self._strip_protocol(path)
        infos = [
            self._merged_info(f"{token}/{stem}{_SUFFIX}", address, parts)
            for stem, parts in address.names().items()
        ]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        address, name = self._parsed(path)
        if not name:
            return {"name": path, "size": 0, "type": "directory"}
        if (tar := self._member_tar(address, name)) is not None:
            return {"name": path, "size": size_of(tar), "type": "file"}
        return self._merged_info(path, address, self._tars(address, name))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        if mode != "rb":
            raise ValueError(f"paired shards can only be read, not opened in mode {mode!r}")
        address, name = self._parsed(path)
        if (tar := self._member_tar(address, name)) is not None:
            return open_binary(tar)
        return _merged(name, address, self._parts(address, name))

    def _parsed(self, path: str) -> tuple[PairedAddress, str]:
        token, _, name = self._strip_protocol(path).partition("/")
        return PairedAddress.parse(token), name

    def _member_tar(self, address: PairedAddress, name: str) -> str | None:
        modality, slash, file = name.partition("/")
        if not slash:
            return None
        for tar in address.parts(stem_of(file)).get(modality, []):
            if os.path.basename(tar) == file:
                return tar
        raise FileNotFoundError(f"{name}: no tar of this name")

    def _parts(self, address: PairedAddress, name: str) -> dict[str, str]:
        """Return the one tar of each modality.

        Raises:
            FileNotFoundError: A modality has none.
            ValueError: A modality has several.
        """
        parts = self._tars(address, name)
        for modality, files in parts.items():
            if len(files) > 1:
                names = ", ".join(os.path.basename(file) for file in files)
                stem = name.removesuffix(_SUFFIX)
                raise ValueError(
                    f"several tars of modality {modality!r} are called {stem!r}, rename all but one: {names}"
                )
        return {modality: files[0] for modality, files in parts.items()}

    def _tars(self, address: PairedAddress, name: str) -> dict[str, list[str]]:
        stem = name.removesuffix(_SUFFIX)
        parts = address.parts(stem)
        for modality, location in address.locations.items():
            if modality not in parts:
                raise FileNotFoundError(f"{location}: no tar {stem!r} of modality {modality!r}")
        return parts

    def _merged_info(
        self, path: str, address: PairedAddress, parts: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        files = ((modality, file) for modality, tars in parts.items() for file in tars)
        return virtual_info(path, (_REVISION, address.missing_key_policy), files)


def _merged(name: str, address: PairedAddress, files: Mapping[str, str]) -> IO[bytes]:
    """Return the merged tar as an open, unlinked temporary file.

    Raises:
        TarDamage: A compressed tar is damaged.
    """
    with ExitStack() as stack:
        parts = []
        for modality in address.locations:  # in the order given
            file = files[modality]
            part_name = f"{modality}/{os.path.basename(file)}"
            descriptor = stack.enter_context(open_tar(file, part_name))
            parts.append(ModalityTar(modality, part_name, descriptor, scan_tolerant(descriptor, part_name)))
        return virtual_file(lambda target: merge(parts, target, address.missing_key_policy))
