"""Table of formats, and the rules for names of files, samples and blocks.

* `FORMAT_TABLE`: one record for each format of datasets. It holds names only: readers and writers are named
  as ``module:class`` and imported when they are used, so that reading the table loads no format. What
  accounting knows of a format (its canonical reader, checks beside the rows, lookup of a sample) is declared
  in ``mm_assets/accounting/formats.py``.
* Tar layout: the WebDataset key of a sample, and the file name of a partition.
* Raw shards: suffixes of tars and of Parquet files, and which of them are read where both are found.
* PDFs: suffixes of PDF files and block files, and the names of a page's blocks in locators.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote, unquote

from mm_assets.storage.errors import not_utf8

MAX_KEY = 80  # leaves 20 of USTAR's 100 bytes for ".<position>.<ext>"
# Hugging Face skips names that begin with "__"; shells take "-" for an option.
_ESCAPED_FIRST = {"_": "%5F", "-": "%2D", "~": "%7E"}


def sample_key(sample_id: str) -> str:
    """Return the WebDataset key of a sample: 1 to 80 ASCII characters without dot and slash, unique per id.

    The id is percent-encoded, dots and a leading ``_ - ~`` too. Where that would be empty or too long the key
    is ``=`` and the SHA-256 of the id in hex (an encoded id has no ``=``). It depends on the id alone.

    Raises:
        ValueError: the id has lone surrogates, and so no UTF-8 form.
    """
    try:
        raw = sample_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{sample_id!r} holds lone surrogates and has no UTF-8 form") from error
    if 0 < len(raw) <= MAX_KEY:
        key = quote(raw, safe="").replace(".", "%2E")
        key = _ESCAPED_FIRST.get(key[0], key[0]) + key[1:]
        if len(key) <= MAX_KEY:
            return key
    return "=" + sha256(raw).hexdigest()


def ids_in_name(name: str) -> set[str]:
    """Return what in the name of a tar's member may be the id of its sample, or the key of that.

    These are its beginnings before each of its dots, also without its folder, as they are and decoded.

    Args:
        name: of the member, with that of its tar before it or words behind it, if there are several.
    """
    parts = {part for each in name.split(": ") for part in (each, each.rpartition("/")[2])}
    stems = {part[:at] for part in parts for at in _ends_of_stems(part)}
    return stems | {unquote(stem) for stem in stems}


def _ends_of_stems(name: str) -> Iterator[int]:
    at = len(name)
    while at > 0:
        yield at
        at = name.rfind(".", 0, at)


@lru_cache(maxsize=1 << 17)  # each run asks for those of all partitions several times
def partition_filename(partition: str) -> str:
    """Return the file name of a partition without its extension, by the rule of `sample_key`.

    Raises:
        ValueError: as `sample_key`.
    """
    try:
        return sample_key(partition)
    except ValueError as error:
        raise ValueError(not_utf8(partition)) from error


PLAN_FILE = "plan.parquet"  # of a training set: which samples are where; no data itself
SET_NOTES = ".training"  # the folder beside it
SET_NEXT = f"{SET_NOTES}/next"  # what waits there until it replaces the set
SPLIT_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)  # as Hugging Face datasets names them
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
PACKED_TAR_SUFFIXES = (  # compressions that are not supported
    *(
        ".tar.bz2",
        ".tbz2",
        ".tbz",
        ".tar.xz",
        ".txz",
        ".tar.zst",
        ".tzst",
        ".tar.lz4",
        ".tar.lzma",
        ".tlz",
        ".tar.lz",
    ),
    *(".tar.br", ".tar.sz", ".tar.z", ".taz"),
)


PDF_SUFFIXES = (".pdf",)
BLOCKS_SUFFIX = ".blocks.json"

_BLOCK = re.compile(r"(?:.*: )?page \d{1,18}, block \d{1,18}", re.ASCII | re.DOTALL)


def is_pdf(name: str) -> bool:
    """Return whether a file is a PDF by its name."""
    return name.lower().endswith(PDF_SUFFIXES)


def is_block_file(name: str) -> bool:
    """Return whether a file is one of blocks by its name, also where no PDF would find it."""
    return name.lower().endswith(BLOCKS_SUFFIX)


def blocks_beside(pdf: str) -> str:
    """Return the name of the file with a PDF's blocks."""
    return pdf[: -len(PDF_SUFFIXES[0])] + BLOCKS_SUFFIX


def block_name(member: str | None, page: int, number: int) -> str:
    """Return ``page 3, block 2``, both counted from 1, behind the PDF's name in a tar.

    It is not the name of a tar member.
    """
    place = f"page {page}, block {number}"
    return place if member is None else f"{member}: {place}"


def is_block(member: str | None) -> bool:
    """Return whether the member of a locator is a block of a page."""
    return member is not None and _BLOCK.fullmatch(member) is not None


_MARKER = "/"  # first character of a suffix that is the name of a file inside the output's folder

# Arguments of a reader that describe documents of others: fields of `RawLayout`.
DOCUMENT_OPTIONS = (
    "sample_id_field",
    "sample_id_prefix",
    "texts_field",
    "images_field",
    "document_layout",
    "images_from",
    "declared_digests",
)
MEMBER_OPTIONS = ("image_member_field", "per_image_fields", "per_text_fields", "image_extensions")


@dataclass(frozen=True)
class Format:
    """A format of datasets.

    Args:
        name: its name in commands, records and the graph.
        title: its name in text for people.
        reader: ``module:class`` of its `InterleavedReader`.
        writer: ``module:class`` of its `InterleavedWriter`.
        suffixes: suffixes of its files, in lower case; ``/name`` is the file that makes a folder an output.
        written: the suffix that the writer gives to the output of a partition.
        shown: how people recognize its files.
        is_table: whether all partitions are in one table, a folder whose name ends in ``written``.
        sidecars: suffixes of files that belong to files of this format, although another format has the
            suffix, too.
        raw_options: arguments of the reader that describe documents of others.
        origin_record: path of a file that only outputs of ours have, with ``{folder}`` and ``{name}`` of the
            output: names are unescaped only where it exists. Empty: they always are.
        gives_way: whether files of it beside data of another format are ignored, with a warning: they are
            often a log or statistics.
        quarantine_rereads: whether a reader that quarantines samples has to read all rows twice; files that
            this project wrote are read once.
    """

    name: str
    title: str
    reader: str
    writer: str
    suffixes: tuple[str, ...]
    written: str
    shown: str
    is_table: bool = False
    sidecars: tuple[str, ...] = ()
    raw_options: tuple[str, ...] = ()
    origin_record: str = ""
    quarantine_rereads: bool = False
    gives_way: bool = False

    @property
    def marker(self) -> str:
        """The file that makes a folder an output, with a slash in front; empty where an output is a file."""
        return self.written if self.written.startswith(_MARKER) else ""

    @property
    def is_file(self) -> bool:
        """Whether each partition is one file, and nothing else."""
        return not self.is_table and not self.marker and not self.sidecars

    def uri(self, folder: str, partition: str) -> str:
        """Return the main file of a partition, or the table (then it is ``folder``)."""
        return (
            folder if self.is_table else f"{folder.rstrip('/')}/{partition_filename(partition)}{self.written}"
        )

    def output(self, uri: str) -> str:
        """Return the output that has this file: the folder of a marker, else the file itself."""
        return uri.removesuffix(self.marker) if self.marker else uri

    def has(self, name: str) -> bool:
        """Return whether a file of this name is of this format."""
        return f"/{name.rstrip('/').lower()}".endswith(self.suffixes)

    def is_named_by_us(self, file: str) -> bool:
        """Return whether the name of a local file or URL may be an escaped name of a partition."""
        if self.is_table:
            return False
        folder, _, name = file.rpartition("/")
        return not self.origin_record or os.path.exists(self.origin_record.format(folder=folder, name=name))


FORMAT_TABLE = (
    Format(
        name="parquet",
        title="Parquet",
        reader="mm_assets.formats.parquet.reader_writer:InterleavedParquetReader",
        writer="mm_assets.formats.parquet.reader_writer:InterleavedParquetWriter",
        suffixes=(".parquet",),
        written=".parquet",
        shown=".parquet",
        raw_options=DOCUMENT_OPTIONS,
        quarantine_rereads=True,
    ),
    Format(
        name="webdataset",
        title="tar",
        reader="mm_assets.formats.webdataset.reader:InterleavedWebdatasetReader",
        writer="mm_assets.formats.webdataset.writer:InterleavedWebdatasetWriter",
        suffixes=(".tar", ".tar.gz", ".tgz", ".zip"),
        written=".tar",
        shown=".tar",
        raw_options=(*DOCUMENT_OPTIONS, *MEMBER_OPTIONS, "json_extensions"),
        # A raw shard may have any name, and another shard the same name unescaped.
        origin_record="{folder}/.mm_assets/{name}.json",
    ),
    Format(
        name="lance",
        title="Lance",
        reader="mm_assets.formats.lance.reader_writer:InterleavedLanceReader",
        writer="mm_assets.formats.lance.reader_writer:InterleavedLanceWriter",
        suffixes=(".lance",),
        written=".lance",
        shown=".lance",
        is_table=True,
    ),
    Format(
        name="arrow_cache",
        title="Arrow cache",
        reader="mm_assets.formats.arrow_cache.reader_writer:InterleavedArrowCacheReader",
        writer="mm_assets.formats.arrow_cache.reader_writer:InterleavedArrowCacheWriter",
        suffixes=("/_metadata.json",),
        written="/_metadata.json",
        shown="_metadata.json of a cache",
    ),
    Format(
        name="jsonl",
        title="JSON lines",
        reader="mm_assets.formats.jsonl:InterleavedJsonlReader",
        writer="mm_assets.formats.jsonl:InterleavedJsonlWriter",
        suffixes=(".jsonl.gz", ".jsonl"),
        written=".jsonl.gz",
        shown=".jsonl",
        sidecars=(".images.tar",),
        gives_way=True,
        raw_options=(*DOCUMENT_OPTIONS, *MEMBER_OPTIONS),
    ),
    Format(
        name="mds",
        title="MDS",
        reader="mm_assets.formats.mds:InterleavedMdsReader",
        writer="mm_assets.formats.mds:InterleavedMdsWriter",
        suffixes=(".mds",),
        written=".mds",
        shown=".mds",
    ),
)
FORMATS = tuple(entry.name for entry in FORMAT_TABLE)
_BY_NAME = {entry.name: entry for entry in FORMAT_TABLE}

SUFFIXES = tuple(s for entry in FORMAT_TABLE for s in entry.suffixes)
TABLE_SUFFIXES = tuple(s for entry in FORMAT_TABLE if entry.is_table for s in entry.suffixes)


def format_of(name: str) -> Format:
    """Return the format of a name.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in _BY_NAME:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    return _BY_NAME[name]


def nearest_format(word: str) -> str | None:
    """Return the format that a user who typed something else may mean; None if none is alike."""
    words = {
        spelling.strip("./_").lower(): entry.name
        for entry in FORMAT_TABLE
        for spelling in (*entry.suffixes, entry.title, *entry.name.split("_"))
    }
    words["wds"] = "webdataset"  # as people write it; MDS is spelled almost alike
    near = get_close_matches(word.lower(), words, n=1, cutoff=0.4)
    return words[near[0]] if near else None


def format_by_suffix(name: str) -> Format | None:
    """Return the format of a file, folder or URL, by its name; None for an unknown suffix."""
    return next((entry for entry in FORMAT_TABLE if entry.has(name)), None)


def output_of(file: str) -> str:
    """Return the output that a file belongs to: the folder for a folder's marker, else the file itself."""
    found = format_by_suffix(file)
    return file if found is None else found.output(file)


def without_sidecars(names: Iterable[str]) -> list[str]:
    """Return the names without sidecars, files that belong to others among them."""
    names = list(names)
    present = {found for name in names if (found := format_by_suffix(name)) is not None}
    sidecars = tuple(suffix for found in present for suffix in found.sidecars)
    return [name for name in names if not sidecars or not name.lower().endswith(sidecars)]


def listed(words: Iterable[str]) -> str:
    """Return words as a list for people: ``a, b or c``."""
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


TITLES = listed(entry.title for entry in FORMAT_TABLE)
SHOWN = listed(entry.shown for entry in FORMAT_TABLE)


PARQUET_SUFFIXES = format_of("parquet").suffixes
LINES_SUFFIXES = format_of("jsonl").suffixes
# Files with one JSON array of documents. They are read where they are named: folders have other such files.
ARRAY_SUFFIXES = (".json",)
ZIP_SUFFIXES = (".zip",)
# Kinds of raw shards, by the suffixes of their files. Of several kinds in a folder, the first is read.
_RAW_KINDS = {
    "tars": TAR_SUFFIXES,
    "Parquet files": PARQUET_SUFFIXES,
    "files of JSON lines": LINES_SUFFIXES,
    "zip files": ZIP_SUFFIXES,
}
RAW_SUFFIXES = tuple(suffix for suffixes in _RAW_KINDS.values() for suffix in suffixes)
NAMED_SUFFIXES = (*RAW_SUFFIXES, *ARRAY_SUFFIXES)

_LINE = re.compile(r"(?:.*: )?(?:line|entry) \d{1,18}", re.ASCII | re.DOTALL)


def is_parquet(uri: str) -> bool:
    """Return whether a file is a Parquet file by its name."""
    return uri.lower().endswith(PARQUET_SUFFIXES)


def is_lines(uri: str) -> bool:
    """Return whether a file has a JSON document a line, or an array of them, by its name."""
    return uri.lower().endswith((*LINES_SUFFIXES, *ARRAY_SUFFIXES))


def is_zip(uri: str) -> bool:
    """Return whether a file is a zip by its name."""
    return uri.lower().endswith(ZIP_SUFFIXES)


_SYSTEM_FILES = ("thumbs.db", "desktop.ini")


def is_system_file(name: str) -> bool:
    """Return whether a path is that of a hidden file, or of one that an operating system has added."""
    parts = name.split("/")
    is_hidden = any((part.startswith(".") and part.strip(".")) or part == "__MACOSX" for part in parts)
    return is_hidden or parts[-1].lower() in _SYSTEM_FILES


def is_line(member: str | None) -> bool:
    """Return whether the member of a locator is a line of a file, or an entry of its array: ``line 17``."""
    return member is not None and _LINE.fullmatch(member) is not None


def first_kind(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the raw shards of a folder or pattern into those of the kind to read and all others.

    Tars come before Parquet files, as exporters of tars (img2dataset, for one) write the metadata of each tar
    to a Parquet file beside it. JSON lines are often a log, or statistics, and zips the data once more.
    """
    for suffixes in _RAW_KINDS.values():
        if chosen := [file for file in files if file.lower().endswith(suffixes)]:
            return chosen, [file for file in files if not file.lower().endswith(suffixes)]
    return list(files), []


def passed_over_lines(location: str, chosen: Sequence[str], passed_over: Sequence[str]) -> list[str]:
    """Return the lines about raw shards that are not read beside the ``chosen`` ones; none without."""
    if not passed_over:
        return []
    beside = _kind_of(chosen[0])
    kinds: dict[str, list[str]] = {}
    for file in passed_over:
        kinds.setdefault(_kind_of(file), []).append(file)
    lines = []
    for kind, files in kinds.items():
        many = f"{len(files)} {kind}" if len(files) > 1 else f"1 {kind.replace('files', 'file')}"
        name, suffix = posixpath.basename(files[0]), _RAW_KINDS[kind][-1]
        lines.append(
            f"{location}: {many} beside {beside} passed over, such as {name}; name *{suffix} to read them"
        )
    return lines


def _kind_of(file: str) -> str:
    return next(kind for kind, suffixes in _RAW_KINDS.items() if file.lower().endswith(suffixes))
