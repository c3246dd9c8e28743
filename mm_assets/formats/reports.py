"""Write reports: what writers wrote, partition by partition, and what of the input was not taken.

`content_columns` finds columns of documents that look like texts or images, for data sets of which none was
taken as such. It judges by names and types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from mm_assets.formats.webdataset import SOURCE
from mm_assets.model.errors import MmAssetsError, counted, html_table, html_text
from mm_assets.model.json_codec import is_json
from mm_assets.model.losses import ItemError, Loss
from mm_assets.model.nested_types import is_bytes, is_text
from mm_assets.model.samples import Example

__all__ = ["PartitionReport", "WriteReport"]


LEFT_OUT_MEMBERS = "left_out_members"  # in the notes on a tar: names of those that macOS or tar had added
_NAMED = 3  # members, or shards, in a line
_SHOWN_PARTITIONS = 20  # in a notebook


class _OfCounts:
    """A representation of one line, however many items are listed."""

    def __repr__(self) -> str:
        report: Any = self
        name = report.path if isinstance(self, WriteReport) else repr(report.partition)
        partitions = [len(report.partitions)] if isinstance(self, WriteReport) else []
        counts = [
            *(counted(number, "partition") for number in partitions),
            *(counted(getattr(report, f"{unit}s"), unit) for unit in ("sample", "image", "text")),
            f"{report.nbytes / 1e6:.1f} MB",
            counted(len(report.losses), "loss", "losses"),
            counted(len(report.errors), "error"),
        ]
        return f"<{type(self).__name__} {name}: {', '.join(counts)}>"

    def _repr_html_(self) -> str:
        report: Any = self
        parts = report.partitions if isinstance(self, WriteReport) else (report,)
        units = ("sample", "image", "text")
        rows = [
            (each.partition, *(str(getattr(each, f"{unit}s")) for unit in units), f"{each.nbytes / 1e6:.1f}")
            for each in parts[:_SHOWN_PARTITIONS]
        ]
        heads = ("partition", *(f"{unit}s" for unit in units), "MB")
        more = f"<p>… and {len(parts) - _SHOWN_PARTITIONS} more</p>" if parts[_SHOWN_PARTITIONS:] else ""
        return f"<p>{html_text(repr(self))}</p>{html_table(heads, rows)}{more}"


@dataclass(frozen=True, repr=False)
class PartitionReport(_OfCounts):
    """Report on one partition's output: counts, digests, losses.

    Attributes:
        partition: its name.
        uri: the output; None when there was nothing to write (an empty tar is never written).
        rows: rows written; ``samples``, ``images`` and ``texts`` are counts among them.
        nbytes: bytes of the output; ``image_bytes`` are those of the images in it.
        schema: the schema as written.
        digest: of the rows as written.
        source_files: the inputs.
        items: how many items the input holds by its own account (None: unknown); each is among the ``rows``
            or the ``losses``.
        source_digest: of the same rows before their columns took the output's types.
        lost_digest: of the rows that steps and the policy took out.
        losses: items that were not written, each with its reason.
        errors: rows written with an error.
        counts: counters of the steps.
        examples: the first items that steps counted, by the name of the counter.
        dropped_columns: columns outside a strict schema.
        notes: facts about the input files, by file.
        extra: facts about the output that only this format has.
    """

    partition: str
    uri: str | None
    rows: int
    samples: int
    images: int
    texts: int
    nbytes: int
    image_bytes: int
    schema: pa.Schema
    digest: str
    source_files: tuple[str, ...] = ()
    items: int | None = None
    source_digest: str = ""
    lost_digest: str = ""
    losses: tuple[Loss, ...] = ()
    errors: tuple[ItemError, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    dropped_columns: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_nothing(self) -> bool:
        """Whether the input holds no samples, so that none were lost either."""
        return not self.rows and not self.losses

    @property
    def filtered(self) -> tuple[Loss, ...]:
        """Items that filters took out."""
        return tuple(loss for loss in self.losses if loss.outcome == "filtered")

    @property
    def flagged(self) -> tuple[Loss, ...]:
        """Items in the output that a filter has something against, and samples by their first rows."""
        return tuple(loss for loss in self.losses if loss.outcome == "flagged")

    @property
    def quarantined(self) -> tuple[Loss, ...]:
        """Items quarantined for a fault of their own or of their sample, and damaged ranges of files."""
        return tuple(loss for loss in self.losses if loss.outcome == "quarantined")


@dataclass(frozen=True, repr=False)
class WriteReport(_OfCounts):
    """Reports on all partitions of one `InterleavedWriter.write` call; the counts are their sums."""

    path: str
    partitions: tuple[PartitionReport, ...]

    def _sum(self, name: str) -> int:
        return sum(getattr(report, name) for report in self.partitions)

    @property
    def rows(self) -> int:
        return self._sum("rows")

    @property
    def samples(self) -> int:
        return self._sum("samples")

    @property
    def images(self) -> int:
        return self._sum("images")

    @property
    def texts(self) -> int:
        return self._sum("texts")

    @property
    def nbytes(self) -> int:
        return self._sum("nbytes")

    @property
    def errors(self) -> tuple[ItemError, ...]:
        """Rows with an error, of all partitions."""
        return tuple(error for report in self.partitions for error in report.errors)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Items that were not written, of all partitions."""
        return tuple(loss for report in self.partitions for loss in report.losses)

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """Columns outside a strict schema, each once."""
        return tuple(dict.fromkeys(name for report in self.partitions for name in report.dropped_columns))

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the outputs."""
        return tuple(report.uri for report in self.partitions if report.uri is not None)


def left_out_of(notes: Mapping[str, Any]) -> list[str]:
    """Return the names of members that macOS or tar programs had added to the tars of a report's notes."""
    return [name for of_file in notes.values() for name in of_file.get(LEFT_OUT_MEMBERS, ())]


def left_out_lines(number: int, first: Sequence[str]) -> list[str]:
    """Return the one line on members that macOS or tar programs had added, and no samples; none without any.

    Args:
        number: how many there are in all tars.
        first: names of some.
    """
    shown = ", ".join(name if name.isprintable() else ascii(name)[1:-1] for name in first[:_NAMED])
    what = f"{counted(number, 'member')} left out, added by macOS or tar and no data"
    return [f"{what}: {shown}{', …' if number > _NAMED else ''}"] if number else []


def empty_shards_lines(names: Sequence[str], of: int) -> list[str]:
    """Return a line on those of ``of`` shards that hold no samples, if there are any."""
    named = f"{', '.join(names[:_NAMED])}{', …' if names[_NAMED:] else ''}"
    return [f"no samples in {len(names)} of {counted(of, 'shard')}: {named}"] if names else []


class PartitionsRefused(MmAssetsError, ValueError):
    """Some partitions of a chunk were not published; the others were.

    ``complaints`` has the reason of each by name, ``reasons`` each reason once.
    """

    def __init__(self, complaints: Mapping[str, str]) -> None:
        self.complaints = dict(complaints)
        self.reasons = list(dict.fromkeys(complaints.values()))
        super().__init__("; ".join(self.reasons))


TEXT, IMAGE = "text", "image"
CONTENT = "content_columns"  # in the notes of a file of others: `content_columns`
# There beside the columns: lines on fields that are named as texts, or images, and hold something else.
UNREAD = {TEXT: "unread text", IMAGE: "unread image"}
NO_PAIRS = "no pairs"  # likewise, a line on the json for which a tar is none of image-text pairs
DOCUMENTS = "documents"  # in the notes of a file of others: the layout of its documents, in words
_LIKE = {TEXT: "text", IMAGE: "images"}
_COLUMNS_NAMED = 8  # columns in a line
_LOOKED_AT = 8  # entries of a list or an object in JSON
_DEEPEST = 5  # levels of lists and objects
_LONGEST = 60  # characters of a name in a line
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")

_TEXTS = frozenset(
    "text texts caption captions conversation conversations message messages dialog dialogue chat question "
    "questions query answer answers prompt prompts instruction instructions response responses completion "
    "output content contents description descriptions title headline abstract summary body alt sentence "
    "sentences paragraph paragraphs markdown html ocr transcript story".split()
)
_IMAGES = frozenset(
    "image images img imgs picture pictures pic pics photo photos jpg jpeg png webp gif tiff tif bmp "
    "thumbnail thumbnails thumb figure figures frame frames pixels".split()
)
# Strings, or bytes, under such names are about an item, or are none.
_OTHERS = frozenset(
    "id ids uid uids uuid uuids guid key keys index idx url urls uri uris href link links path paths file "
    "files filename filenames name names dir folder hash md sha crc phash checksum digest etag license "
    "licence licenses copyright rights mime type format ext extension encoding split subset source src "
    "dataset domain host lang language languages locale status code error exif meta metadata date time "
    "timestamp created updated version width height size shape bbox boxes box polygon segmentation mask "
    "masks keypoints embedding embeddings vector features audio video wav mp npy pdf model modality "
    "ref".split()
)
_NO_IMAGE = _OTHERS - frozenset(
    "url urls uri uris href link path paths file files filename filenames name names src".split()
)

ContentColumns = Mapping[str, tuple[str, ...]]


def content_columns(columns: Iterable[pa.Field], leaves: Mapping[str, Iterable[str]]) -> ContentColumns:
    """Return by modality the columns that look like its content, the most likely first.

    Args:
        columns: passthrough columns of documents.
        leaves: of columns of JSON, `string_leaves` of their values; of one that has none any text is assumed.
    """
    found: dict[str, list[tuple[bool, str]]] = {TEXT: [], IMAGE: []}
    for column in columns:
        if column.name == SOURCE:  # fields that are no list although their name says so, among others
            for name in leaves.get(SOURCE, ()):
                found[TEXT] += [(True, name)] * _head_in(_TEXTS, name)
                found[IMAGE] += [(True, name)] * _head_in(_IMAGES, name)
            continue
        of_type = list(_leaves_of(column.type, _is_string))
        strings = list(leaves.get(column.name, of_type)) if is_json(column) else of_type
        if any(_is_text(column.name, leaf) for leaf in strings):
            found[TEXT].append((_head_in(_TEXTS, column.name), column.name))
        blobs = list(_leaves_of(column.type, _is_blob))
        if (
            blobs and not strings and _head_in(_TEXTS, column.name)
        ):  # older Hive and Impala write text as bytes
            found[TEXT].append((True, column.name))
        is_named = bool(strings and _words(column.name) & _IMAGES)
        if (blobs or is_named) and not any(
            _is_other(name, _NO_IMAGE if blobs else _NO_IMAGE | _TEXTS) for name in (column.name, *blobs)
        ):
            found[IMAGE].append((bool(blobs), column.name))
    return {
        modality: tuple(name for _, name in sorted(names, key=lambda entry: not entry[0]))
        for modality, names in found.items()
        if names
    }


def string_leaves(value: Any, name: str = "", depth: int = 0) -> set[str]:
    """Return the names of the innermost fields with a string in a JSON value, "" outside of any."""
    if isinstance(value, str):
        return {name}
    if depth >= _DEEPEST:
        return set()
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, list):
        inner = ((name, entry) for entry in value[:_LOOKED_AT])
    elif isinstance(value, dict):
        inner = islice(value.items(), _LOOKED_AT)
    return {leaf for field, entry in inner for leaf in string_leaves(entry, field, depth + 1)}


def merged_content(files: Iterable[ContentColumns]) -> ContentColumns:
    """Return the columns of several files, each once."""
    found: dict[str, dict[str, None]] = {}
    for columns in files:
        for modality, names in columns.items():
            found.setdefault(modality, {}).update(dict.fromkeys(names))
    return {modality: tuple(names) for modality, names in found.items()}


def untaken(columns: ContentColumns, texts: int, images: int) -> ContentColumns:
    """Return the columns of the modalities of which a shard with ``texts`` and ``images`` has no item."""
    counts = {TEXT: texts, IMAGE: images}
    wanted = [key for modality in counts if not counts[modality] for key in (modality, UNREAD[modality])]
    return {key: columns[key] for key in wanted if columns.get(key)}


def untaken_in(report: PartitionReport) -> ContentColumns:
    """Return `untaken` of a writer's report. Items that filters or the error policy took out were taken."""
    if not report.samples:
        return {}
    lost = Counter(loss.modality for loss in report.losses)
    columns = merged_content(notes.get(CONTENT, {}) for notes in report.notes.values())
    return untaken(columns, report.texts + lost[TEXT], report.images + lost[IMAGE])


def untaken_lines(found: Iterable[ContentColumns], of: int) -> list[str]:
    """Return a line on each modality of which some of ``of`` shards have columns, but no item.

    Args:
        found: `untaken` of each of those shards.
        of: 0 if there is no more than the one.
    """
    lines = []
    shards = [shard for shard in found if shard]
    for modality, like in _LIKE.items():
        having = [shard for shard in shards if shard.get(modality) or shard.get(UNREAD[modality])]
        if having:
            unread = list(Counter(line for shard in having for line in shard.get(UNREAD[modality], ())))
            named = [line.partition(": ")[0] for line in unread]
            names = list(Counter(name for shard in having for name in shard.get(modality, ())))
            names = [name for name in names if not any(f"field {name!r} " in each for each in named)]
            shown = ", ".join(map(_shown, names[:_COLUMNS_NAMED])) + (", …" if names[_COLUMNS_NAMED:] else "")
            alike = [f"columns that look like {like}: {shown}"] if names else []
            which = f" from {len(having)} of {counted(of, 'shard')}" if of else ""
            parts = [f"no {modality} was taken{which}", *unread[:1], *alike, "see docs/raw_shards.md"]
            lines.append("; ".join(parts))
    return lines


def _shown(name: str) -> str:
    """Return a name of the data on one line, whatever it holds."""
    plain = name if name.isprintable() else ascii(name)[1:-1]
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}


def _head_in(words: frozenset[str], name: str) -> bool:
    """Return whether the last word of a name is among some. It says what a thing is: image_url is a url."""
    found = _WORDS.findall(name)
    return bool(found) and found[-1].lower() in words


def _is_other(name: str, others: frozenset[str]) -> bool:
    return _head_in(others, name) or (not _head_in(_TEXTS | _IMAGES, name) and bool(_words(name) & others))


def _is_text(name: str, leaf: str) -> bool:
    """Return whether strings in a column, in fields called ``leaf`` if that is not empty, may be texts."""
    if leaf and _head_in(_TEXTS, leaf):
        return True
    if leaf and _is_other(leaf, _OTHERS):
        return False
    return _head_in(_TEXTS, name) or not (_is_other(name, _OTHERS) or _words(name) & _IMAGES)


def _is_string(type_: pa.DataType) -> bool:
    return is_text(type_) or bool(pa.types.is_string_view(type_))


def _is_blob(type_: pa.DataType) -> bool:
    return is_bytes(type_) or bool(pa.types.is_binary_view(type_))


def _leaves_of(type_: pa.DataType, is_leaf: Callable[[pa.DataType], bool], name: str = "") -> Iterator[str]:
    """Yield the names of the innermost fields of a kind; empty for a column that has no fields."""
    if is_leaf(type_):
        yield name
    elif pa.types.is_struct(type_):
        for field in type_:
            yield from _leaves_of(field.type, is_leaf, field.name)
    elif pa.types.is_map(type_):
        yield from _leaves_of(type_.item_type, is_leaf, name)
    elif hasattr(type_, "value_type"):  # lists of all kinds, dictionaries
        yield from _leaves_of(type_.value_type, is_leaf, name)
