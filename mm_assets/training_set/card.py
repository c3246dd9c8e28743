"""The card of a training set: its splits and sources in counts, bytes, tokens and licences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mm_assets.formats.names import PLAN_FILE, format_of
from mm_assets.formats.webdataset.client_files import SetNotes, split_paths
from mm_assets.training_set.plan import Recipe, totals
from mm_assets.training_set.sources import Source

_CHAPTERS = """
## Splits

| Split | Shards | Samples | Uses | Bytes | Tokens |
|---|---:|---:|---:|---:|---:|
{splits}
The split is decided by {decided}, {order}. *Uses* counts a sample as often
as its `repeats` in `{plan}` say: a loader repeats it, the shards have it once. Tokens are those of all uses;
bytes are those of tars.

## Sources

| Source | Licence | Samples | Weight | In the set | Uses | Bytes |
|---|---|---:|---:|---:|---:|---:|
{sources}
`{plan}` has a row for each sample of the sources: where it was, where it is, and why it is not in the set.
"""


def set_notes(plan: pa.Table, sources: Sequence[Source], recipe: Recipe) -> SetNotes:
    """Return licences and chapters of the card."""
    shards: dict[str, set[str]] = {}
    for split, shard in zip(plan.column("split").to_pylist(), plan.column("shard").to_pylist(), strict=True):
        shards.setdefault(split, set()).update(() if shard is None else (shard,))
    splits = "".join(
        _row(f"`{of['split']}`", len(shards[of["split"]]), of["used"], of["uses"], of["bytes"], of["tokens"])
        for of in totals(plan, "split")
    )
    by_name = {of["source"]: of for of in totals(plan, "source")}
    rows = ""
    for source in sources:
        of = by_name.get(source.name, dict.fromkeys(("samples", "used", "uses", "bytes"), 0))
        weight = f"{recipe.weights.get(source.name, 1.0):g}"
        rows += _row(
            f"`{source.name}`",
            ", ".join(source.licences) or "not stated",
            of["samples"],
            weight,
            of["used"],
            of["uses"],
            of["bytes"],
        )
    by = recipe.fields.split_by
    decided = "a hash of the sample's id" if by is None else f"a hash of `{by}`"
    order = (
        "the order is that of the sources" if recipe.seed is None else f"the order by the seed {recipe.seed}"
    )
    licences = tuple(dict.fromkeys(text for source in sources for text in source.licences))
    chapters = _CHAPTERS.format(splits=splits, sources=rows, decided=decided, order=order, plan=PLAN_FILE)
    return SetNotes(licences, chapters)


def _row(*cells: Any) -> str:
    shown = (
        "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else _plain(cell) for cell in cells
    )
    return f"| {' | '.join(shown)} |\n"


def _plain(text: str) -> str:
    """Return text that cannot end a cell: names are those of folders."""
    return " ".join(text.split()).replace("|", "\\|")


def plain_card(kind: str, splits: Sequence[str], notes: SetNotes) -> str:
    """Return ``README.md`` for shards of a format without a card of its own; each split is in its folder."""
    paths = split_paths({name: f"{name}/*" for name in splits})
    head = f"---\nconfigs:\n- config_name: default\n  data_files:\n{paths}{notes.matter()}---\n"
    title = "# Interleaved image-text samples"
    return f"{head}\n{title}\n\n{format_of(kind).title} files of whole samples.\n{notes.chapters}"
