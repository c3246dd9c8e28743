"""Dataset-level files that clients read beside a folder of tars, made from statistics of each tar.

* wids and Megatron-Energon: their index files.
* Hugging Face: the dataset card (``README.md``), with the features that must be declared, and a readable
  page.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import lt

import pyarrow as pa
import xxhash

from mm_assets.model.json_codec import is_json_text
from mm_assets.model.nested_types import is_list

ENERGON_VERSION = "7.4.1"  # the release whose `energon prepare` these files equal

_Bytes = bytes  # for a class below that has a field called bytes
_Text = str | bytes
_FEATURE = re.compile(r"(list:)*(int64|float64|bool|string|null)|json")
_PAIR = re.compile(r"(0|[1-9][0-9]*)\.([a-z0-9]+)")


@dataclass(frozen=True, slots=True)
class TarPartitionStats:
    """Statistics of one tar, as needed by the dataset-level files.

    ``file`` is the tar's name in its folder, ``bytes`` its size. ``pairs`` maps an extension to the sorted
    positions with such an image. ``columns`` maps each extra column, in order, to its Hugging Face feature
    *in JSON*: ``int64 float64 bool string null json``, or ``list:`` before any but the last. ``idx`` is the
    digest of its ``.tar.idx``, empty if not known; ``split`` the split that it belongs to, empty where there
    are none.

    Raises:
        ValueError: A value is something else.
    """

    file: str
    samples: int
    bytes: int
    pairs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    idx: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        if not self.file.endswith(".tar") or self.file.startswith(".") or "/" in self.file:
            raise ValueError(f"{self.file!r} is not the plain name of a .tar file")
        if self.samples < 0 or self.bytes < 0:
            raise ValueError(f"{self.file}: negative counts")
        object.__setattr__(self, "pairs", {ext: tuple(self.pairs[ext]) for ext in sorted(self.pairs)})
        object.__setattr__(self, "columns", dict(self.columns))
        for ext, positions in self.pairs.items():
            is_ascending = all(map(lt, positions, positions[1:]))
            if not _is_extension(ext) or not is_ascending or (positions and positions[0] < 0):
                raise ValueError(f"{self.file}: pairs of {ext!r} are not ascending positions of an extension")
        for column, feature in self.columns.items():
            if not _is_feature(feature):
                raise ValueError(f"{self.file}: column {column!r} has no feature {feature!r}")

    def with_idx(self, idx: _Bytes) -> TarPartitionStats:
        """Return the statistics with the digest of this ``.tar.idx``."""
        return replace(self, idx=xxhash.xxh3_128_hexdigest(idx))

    def fits(self, nbytes: int, idx: _Bytes) -> bool:
        """Return True if the statistics agree with the size of a tar and with a ``.tar.idx``."""
        is_known = self.idx in ("", xxhash.xxh3_128_hexdigest(idx))
        return self.bytes == nbytes and len(idx) == 8 * (self.samples + 1) and is_known

    def to_json(self) -> str:
        """Return the statistics as JSON text; equal statistics give equal text."""
        pairs = {ext: _ranges(positions) for ext, positions in self.pairs.items()}
        content = {"file": self.file, "samples": self.samples, "bytes": self.bytes, "pairs": pairs}
        content |= {"columns": list(self.columns.items()), "idx": self.idx}
        return json.dumps(content | ({"split": self.split} if self.split else {})) + "\n"

    @classmethod
    def from_json(cls, text: _Text) -> TarPartitionStats:
        """Return the statistics that `to_json` wrote.

        Raises:
            ValueError: The text is something else.
        """
        try:
            raw = json.loads(text)
            pairs = {ext: _positions(ranges) for ext, ranges in raw["pairs"].items()}
            columns, idx = dict(raw["columns"]), str(raw.get("idx", ""))
            counts = int(raw["samples"]), int(raw["bytes"])
            return cls(raw["file"], *counts, pairs, columns, idx, str(raw.get("split", "")))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the facts of a partition: {text[:200]!r}") from error


@cache
def _is_extension(text: str) -> bool:
    return re.fullmatch("[a-z0-9]+", text) is not None


@cache
def _is_feature(text: str) -> bool:
    return _FEATURE.fullmatch(text) is not None


def parse_pairs(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return ``pairs`` of `TarPartitionStats` from names "<position>.<ext>".

    Raises:
        ValueError: A name has another form.
    """
    found: dict[str, set[int]] = {}
    for name in set(names):
        match = _PAIR.fullmatch(name)
        if not match:
            raise ValueError(f"{name!r} is not <position>.<ext>")
        found.setdefault(match[2], set()).add(int(match[1]))
    return {ext: tuple(sorted(found[ext])) for ext in sorted(found)}


def hf_type(column: pa.Field) -> str:
    """Return the Hugging Face feature of a column's values in our JSON (`json_codec.encode`)."""
    if is_json_text(column):
        return "json"
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return "json" if isinstance(type_, pa.JsonType) else hf_type(pa.field("", type_.storage_type))
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return hf_type(pa.field("", type_.value_type))
    if _is_list(type_):
        inner = hf_type(type_.value_field)
        return "json" if inner == "json" else f"list:{inner}"
    if pa.types.is_null(type_):
        return "null"
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_uint64(type_) or pa.types.is_nested(type_) or pa.types.is_interval(type_):
        return "json"
    if pa.types.is_integer(type_) or pa.types.is_duration(type_) or pa.types.is_time(type_):
        return "int64"
    return "float64" if pa.types.is_floating(type_) else "string"


def union_feature(one: str, other: str) -> str:
    """Return the feature that holds the values of both.

    Nulls fit any feature, int64 and float64 give float64, others ``json``.
    """
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if {one, other} == {"int64", "float64"}:
        return "float64"  # not json: there `datasets` keeps only ten digits of a float, and no NaN
    if one.startswith("list:") and other.startswith("list:"):
        inner = union_feature(one.removeprefix("list:"), other.removeprefix("list:"))
        return "json" if inner == "json" else f"list:{inner}"
    return "json"


def union_columns(stats: Iterable[TarPartitionStats]) -> dict[str, str]:
    """Return the feature of every extra column, in order of first appearance."""
    union: dict[str, str] = {}
    for partition in stats:
        for column, feature in partition.columns.items():
            union[column] = union_feature(union[column], feature) if column in union else feature
    return union


def union_pairs(stats: Iterable[TarPartitionStats]) -> list[str]:
    """Return every "<position>.<ext>", by position, then extension."""
    pairs = {
        (position, ext) for part in stats for ext, positions in part.pairs.items() for position in positions
    }
    return [f"{position}.{ext}" for position, ext in sorted(pairs)]


def wids_index(stats: Iterable[TarPartitionStats]) -> str:
    """Return the ``index.json`` of wids: every tar with its count, relative to the index.

    Its name is that of the format: the index is the same in any folder.
    """
    shards = [
        f'  {{\n   "url": {json.dumps(p.file)},\n   "nsamples": {p.samples},\n   "filesize": {p.bytes}\n  }}'
        for p in _in_order(stats)
    ]
    head = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "webdataset"}
    return _with_lines(head, "shardlist", "[", shards, "]")


def parse_wids_index(text: str | bytes) -> list[TarPartitionStats]:
    """Return files, counts and sizes listed in a `wids_index`, without pairs and columns.

    The list is empty for any other text.
    """
    try:
        return [
            TarPartitionStats(s["url"], int(s["nsamples"]), int(s["filesize"]))
            for s in json.loads(text)["shardlist"]
        ]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return []


def tar_idx(offsets: Sequence[int]) -> bytes:
    """Return Energon's ``.tar.idx``: byte offsets of each sample's first header, and of the end blocks."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def energon_info(stats: Iterable[TarPartitionStats]) -> str:
    """Return the ``.nv-meta/.info.json`` of Megatron-Energon."""
    counts = [f"  {json.dumps(p.file)}: {p.samples}" for p in _in_order(stats)]
    return _with_lines({"energon_version": ENERGON_VERSION}, "shard_counts", "{", counts, "}")


# The parts that Megatron-Energon has, by what others call their splits. It reads no other split.
_PARTS = {"": "train", "train": "train", "validation": "val", "valid": "val", "val": "val", "test": "test"}


def energon_split(stats: Iterable[TarPartitionStats]) -> str:
    """Return the ``.nv-meta/split.yaml`` of Megatron-Energon; tars of no split are for training."""
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    excluded: list[str] = []
    for p in _in_order(stats):
        parts.get(_PARTS.get(p.split, ""), excluded).append(p.file)
    lists = {**{f"  {name}:": files for name, files in parts.items()}, "exclude:": excluded}
    lines = [
        f"{head}\n" + "".join(f"  - {json.dumps(file)}\n" for file in files) if files else f"{head} []\n"
        for head, files in lists.items()
    ]
    return "".join(["split_parts:\n", *lines])


def energon_dataset() -> str:
    """Return the ``.nv-meta/dataset.yaml`` of Megatron-Energon: plain samples, for the user's cooker."""
    return "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def _in_order(stats: Iterable[TarPartitionStats]) -> list[TarPartitionStats]:
    return sorted(stats, key=lambda p: p.file)


def _with_lines(
    head: Mapping[str, object], name: str, opening: str, lines: Sequence[str], closing: str
) -> str:
    """Return what `json.dumps` with ``indent=1`` makes of ``head`` and one more value, ten times faster.

    That matters for ten thousand tars, whose files are written anew in each run.

    Args:
        name: of that value, the last one.
        lines: its elements, indented by two.
    """
    body = ",\n".join(lines)
    value = f"{opening}\n{body}\n {closing}" if lines else f"{opening}{closing}"
    return f"{json.dumps(dict(head), indent=1)[:-2]},\n {json.dumps(name)}: {value}\n}}\n"


def _is_list(type_: pa.DataType) -> bool:
    is_view = pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)
    return is_list(type_) or bool(is_view or pa.types.is_fixed_size_list(type_))


def _ranges(positions: Sequence[int]) -> str:
    """Return ``0-3,7`` for 0, 1, 2, 3, 7."""

    def extend(spans: list[list[int]], position: int) -> list[list[int]]:
        if spans and position == spans[-1][1] + 1:
            spans[-1][1] = position
        else:
            spans.append([position, position])
        return spans

    spans: list[list[int]] = reduce(extend, positions, [])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _positions(ranges: str) -> tuple[int, ...]:
    spans = (span.partition("-") for span in ranges.split(",") if span)
    return tuple(n for low, _, high in spans for n in range(int(low), int(high or low) + 1))


_NULL_AS = "string"  # the feature declared for a column of only nulls: any would do
_IMAGE = "dtype: image"
# The declaration of a pair or a column; other names are not quoted.
_DECLARED = re.compile(r'- \{name: ("(?:[^"\\]|\\.)*"), (.*)\}')

_HEAD = """---
configs:
- config_name: default
  data_files:
SPLITSdataset_info:
  config_name: default
  features:
  - {name: __key__, dtype: string}
  - {name: __url__, dtype: string}
  - name: json
    struct:
    - {name: sample_id, dtype: string}
    - {name: texts, list: string}
    - {name: images, list: string}
    - {name: image_members, list: string}
"""

_BODY = """
# Interleaved image-text samples

{samples} samples in {tars} WebDataset tars, {size}.

| Tar | Samples | Bytes |
|---|---:|---:|
{rows}
## Layout

The members of a sample are adjacent: its images `<key>.<position>.<ext>`, then `<key>.json`:

| Field | What it holds |
|---|---|
| `sample_id` | the id; the key is an escaped form of it |
| `texts` | one entry per position, null where there is no text |
| `images` | one entry per position: `"<position>.<ext>"`, the image's key in a WebDataset sample, or null |
| `image_members` | the same as full member names |
| `_row_extra` | `text`, `image`: extra columns per item, aligned with the lists; `metadata`: those of the sample |
| `_row_errors` | items without content or with an error, each with position, modality and message |

`_mm_assets` is bookkeeping for an exact way back to tables; the features above leave it out on purpose.

## Opening it

```python
import webdataset as wds                              # pip install webdataset
for sample in wds.WebDataset(["path/to/{example}"], shardshuffle=False).decode("pil"):
    images = [sample[name] for name in sample["json"]["images"] if name]

from datasets import load_dataset                     # pip install "datasets>=4.7.0", for the features of type json
dataset = load_dataset("path/to/folder", split="train", streaming=True)

import wids                                           # pip install wids; clear its cache after a tar was replaced
dataset = wids.ShardListDataset("path/to/folder/index.json")
```

Megatron-Energon opens the folder as a `CrudeWebdataset` without `energon prepare` (`.nv-meta/` and the `.tar.idx` files
are there); only random access by key needs `energon prepare --force-overwrite`.

NeMo Curator reads the tars with `sample_id_field="sample_id", images_field="image_members"`. Its reader re-encodes
every TIFF, and frames compressed as JPEG lose pixels by it: take TIFF bytes from the tars (its byte ranges are right).
"""  # noqa: E501 (a page of Markdown)


@dataclass(frozen=True)
class SetNotes:
    """What is known of a whole set beside its tars: the licences, and further chapters of its page."""

    licences: Sequence[str] = ()
    chapters: str = ""

    def matter(self) -> str:
        """Return the line of the front matter with the licences."""
        return f"license: [{', '.join(map(_quote, self.licences))}]\n" if self.licences else ""


def readme(
    stats: Sequence[TarPartitionStats],
    also: Sequence[TarPartitionStats] = (),
    notes: SetNotes = SetNotes(),
) -> str:
    """Return ``README.md`` for the tars of ``stats``.

    ``also`` widens the declared features without being listed.
    """
    return front_matter([*stats, *also], notes) + _body(stats) + notes.chapters


def split_paths(paths: Mapping[str, str]) -> str:
    """Return the lines of the front matter that name the files of each split."""
    return "".join(f"  - {{split: {name}, path: {_quote(path)}}}\n" for name, path in paths.items())


def front_matter(stats: Iterable[TarPartitionStats], notes: SetNotes = SetNotes()) -> str:
    """Return the YAML block that `datasets` reads, with all pairs and columns.

    `datasets` silently drops those that are not declared.
    """
    parts = sorted(stats, key=lambda p: p.file)
    columns = union_columns(parts).items()
    column_lines = [_column_line(name, feature) for name, feature in columns]
    splits = {p.split: f"{p.split}-*.tar" for p in parts if p.split} or {"train": "*.tar"}
    lines = [_HEAD.replace("SPLITS", split_paths(splits))]
    if column_lines:  # an empty struct loads, but cannot be exported to Parquet
        lines.append("    - name: _row_extra\n      struct:\n")
        for group, kind in (("text", "list"), ("image", "list"), ("metadata", "struct")):
            lines.append(f"      - name: {group}\n        {kind}:\n")
            lines += [f"        {line}\n" for line in column_lines]
    lines.append("    - name: _row_errors\n      list:\n      - {name: position, dtype: int32}\n")
    lines += [
        f"      - {{name: {n}, dtype: string}}\n" for n in ("modality", "content_type", "materialize_error")
    ]
    if column_lines:
        lines.append("      - name: extra\n        struct:\n")
        lines += [f"        {line}\n" for line in column_lines]
    lines += [f"  {_pair_line(pair)}\n" for pair in union_pairs(parts)]
    return "".join([*lines, notes.matter(), "---\n"])


def declares(card: str, stats: TarPartitionStats) -> bool:
    """Return True if a `readme` declares all pairs and columns of a partition with fitting features."""
    found = _DECLARED.findall(card.partition("\n---\n")[0])
    images = {name for name, declaration in found if declaration == _IMAGE}
    columns = {name: _feature(declaration) for name, declaration in found if declaration != _IMAGE}
    return all(_quote(pair) in images for pair in union_pairs([stats])) and all(
        _quote(name) in columns and union_feature(columns[_quote(name)], feature) == columns[_quote(name)]
        for name, feature in stats.columns.items()
    )


def _feature(declaration: str) -> str:
    """Return ``list:int64`` for ``list: int64``: the inverse of `_column_line`."""
    return "list:" * declaration.count("list: ") + declaration.rstrip("}").rpartition(" ")[2]


def _column_line(name: str, feature: str) -> str:
    *lists, scalar = feature.split(":")
    inner = f"{'list' if lists else 'dtype'}: {_NULL_AS if scalar == 'null' else scalar}"
    for _ in lists[1:]:
        inner = f"list: {{{inner}}}"
    return f"- {{name: {_quote(name)}, {inner}}}"


def _pair_line(pair: str) -> str:
    return f"- {{name: {_quote(pair)}, {_IMAGE}}}"


def _quote(text: str) -> str:
    """Return a YAML double-quoted scalar in printable ASCII: names from the data may hold anything."""
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if 32 <= code < 127:
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _body(stats: Sequence[TarPartitionStats]) -> str:
    parts = sorted(stats, key=lambda p: p.file)
    shown = parts if len(parts) <= 20 else parts[:10]
    rows = "".join(f"| `{p.file}` | {p.samples:,} | {p.bytes:,} |\n" for p in shown)
    if len(shown) < len(parts):
        rows += f"| … and {len(parts) - len(shown):,} more, in `index.json` | | |\n"
    return _BODY.format(
        samples=f"{sum(p.samples for p in parts):,}",
        tars=f"{len(parts):,}",
        size=f"{sum(p.bytes for p in parts):,} bytes",
        rows=rows,
        example=parts[0].file if parts else "shard-00000.tar",
    )
