"""Table of formats: one record for each format of datasets.

The table holds names only. Readers and writers are named as ``module:class`` and imported when they are used,
so that reading the table loads no format. What accounting knows of a format (its canonical reader, checks
beside the rows, lookup of a sample) is declared in ``mm_assets/accounting/formats/<name>.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from mm_assets.formats.keys import partition_filename

_MARKER = "/"  # first character of a suffix that is the name of a file inside the output's folder

# Arguments of a reader that describe documents of others: fields of `RawLayout`.
DOCUMENT_OPTIONS = ("sample_id_field", "sample_id_prefix", "texts_field", "images_field")
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
        reader="mm_assets.formats.parquet:InterleavedParquetReader",
        writer="mm_assets.formats.parquet:InterleavedParquetWriter",
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
        suffixes=(".tar", ".tar.gz", ".tgz"),
        written=".tar",
        shown=".tar",
        raw_options=(*DOCUMENT_OPTIONS, *MEMBER_OPTIONS, "json_extensions"),
        # A raw shard may have any name, and another shard the same name unescaped.
        origin_record="{folder}/.mm_assets/{name}.json",
    ),
    Format(
        name="lance",
        title="Lance",
        reader="mm_assets.formats.lance.reader:InterleavedLanceReader",
        writer="mm_assets.formats.lance.writer:InterleavedLanceWriter",
        suffixes=(".lance",),
        written=".lance",
        shown=".lance",
        is_table=True,
    ),
    Format(
        name="arrow_cache",
        title="Arrow cache",
        reader="mm_assets.formats.arrow_cache.interleaved_reader:InterleavedArrowCacheReader",
        writer="mm_assets.formats.arrow_cache.interleaved_writer:InterleavedArrowCacheWriter",
        suffixes=("/_metadata.json",),
        written="/_metadata.json",
        shown="_metadata.json of a cache",
    ),
    Format(
        name="jsonl",
        title="JSON lines",
        reader="mm_assets.formats.jsonl.reader:InterleavedJsonlReader",
        writer="mm_assets.formats.jsonl.writer:InterleavedJsonlWriter",
        suffixes=(".jsonl.gz", ".jsonl"),
        written=".jsonl.gz",
        shown=".jsonl",
        sidecars=(".images.tar",),
        gives_way=True,
        raw_options=(*DOCUMENT_OPTIONS, *MEMBER_OPTIONS),
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
