"""Flags that say what documents of others look like, and what holds without them."""

from __future__ import annotations

import argparse
from typing import Any

_OF_ITEMS = ("sample_id_prefix",)
_OF_ROWS = (*_OF_ITEMS, "sample_id_field", "texts_field", "images_field")  # of Parquet with a row a document


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    layout = parser.add_argument_group("documents in tars, and in Parquet of others", "not given, MM_<NAME> of the environment holds")
    layout.add_argument("--sample-id-field", help="json field, or column, that holds the sample id")
    layout.add_argument("--sample-id-prefix", choices=("shard",), help="put the partition's name in front of each sample id")
    layout.add_argument("--texts-field", help="json field, or column, with the list of texts (texts)")
    layout.add_argument("--images-field", help="json field, or column, with the list of images (images)")
    layout.add_argument("--image-member-field", help="json field that names the sample's image member")
    layout.add_argument("--image-extensions", type=names, help="suffixes of image members, comma-separated")
    layout.add_argument("--json-extensions", type=names, help="suffixes of the members that are documents, comma-separated")
    layout.add_argument("--per-image-fields", type=names, help="json lists with one value per image, comma-separated")
    layout.add_argument("--per-text-fields", type=names, help="json lists with one value per text, comma-separated")


def layout_of(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Arguments of the reader of a format; none where it reads no documents of others."""
    from mm_assets.settings import Settings

    settings = Settings.from_environment().raw_layout()
    layout = {name: value if getattr(options, name) is None else getattr(options, name) for name, value in settings.items()}
    taken = {"webdataset": tuple(layout), "parquet": _OF_ROWS}.get(kind, ())
    return {name: layout[name] for name in taken}


def refuse_strange_flags(options: argparse.Namespace, kind: str, source: str) -> None:
    """Raises ``ValueError`` for a flag that says nothing of the data of this format at ``source``."""
    from mm_assets.formats.parquet_source import ITEMS, OURS, rows_of
    from mm_assets.formats.storage import expand_paths
    from mm_assets.formats.webdataset.layout import PARQUET_SUFFIXES
    from mm_assets.settings import Settings

    given = [name for name in Settings.from_environment().raw_layout() if getattr(options, name) is not None]
    if not given or kind == "webdataset":
        return
    if kind != "parquet":
        raise ValueError(f"{_flag(given[0])} is for tars and for Parquet of others, not for {kind}")
    file = expand_paths(source, PARQUET_SUFFIXES)[0]
    rows = rows_of(file)
    taken = {OURS: (), ITEMS: _OF_ITEMS}.get(rows, _OF_ROWS)
    if strange := [name for name in given if name not in taken]:
        raise ValueError(f"{_flag(strange[0])} says nothing of {file}: {rows}")


def is_ours(kind: str, source: str) -> bool:
    """Whether the (first) Parquet file at ``source`` is one that this project wrote: nothing in it must be set aside."""
    from mm_assets.formats.parquet_source import OURS, rows_of
    from mm_assets.formats.storage import expand_paths
    from mm_assets.formats.webdataset.layout import PARQUET_SUFFIXES

    return kind == "parquet" and rows_of(expand_paths(source, PARQUET_SUFFIXES)[0]) == OURS


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
