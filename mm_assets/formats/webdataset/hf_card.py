"""Hugging Face dataset card of a folder of tars: the features that must be declared, and a readable page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mm_assets.formats.webdataset.client_indexes import (
    TarPartitionStats,
    union_columns,
    union_feature,
    union_pairs,
)

_NULL_AS = "string"  # the feature declared for a column of only nulls: any would do
_IMAGE = "dtype: image"
# The declaration of a pair or a column; other names are not quoted.
_DECLARED = re.compile(r'- \{name: ("(?:[^"\\]|\\.)*"), (.*)\}')

_HEAD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: "*.tar"}
dataset_info:
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


def readme(stats: Sequence[TarPartitionStats], also: Sequence[TarPartitionStats] = ()) -> str:
    """Return ``README.md`` for the tars of ``stats``.

    ``also`` widens the declared features without being listed.
    """
    return front_matter([*stats, *also]) + _body(stats)


def front_matter(stats: Iterable[TarPartitionStats]) -> str:
    """Return the YAML block that `datasets` reads, with all pairs and columns.

    `datasets` silently drops those that are not declared.
    """
    parts = sorted(stats, key=lambda p: p.file)
    columns = union_columns(parts).items()
    column_lines = [_column_line(name, feature) for name, feature in columns]
    lines = [_HEAD]
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
    return "".join([*lines, "---\n"])


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
