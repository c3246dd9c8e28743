"""Flags for the layout of documents in raw shards, with settings as defaults."""

from __future__ import annotations

import argparse
from typing import Any

_PREFIX = "sample_id_prefix"
# Flags that apply to Parquet with a row per document.
_PARQUET_FLAGS = (_PREFIX, "sample_id_field", "texts_field", "images_field")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to the parser."""
    layout = parser.add_argument_group(
        "documents in tars, and in Parquet of others", "not given, MM_<NAME> of the environment holds"
    )
    layout.add_argument("--sample-id-field", help="json field, or column, that holds the sample id")
    layout.add_argument(
        "--sample-id-prefix", choices=("shard",), help="put the partition's name in front of each sample id"
    )
    layout.add_argument("--texts-field", help="json field, or column, with the list of texts (texts)")
    layout.add_argument("--images-field", help="json field, or column, with the list of images (images)")
    layout.add_argument("--image-member-field", help="json field that names the sample's image member")
    layout.add_argument("--image-extensions", type=names, help="suffixes of image members, comma-separated")
    layout.add_argument(
        "--json-extensions", type=names, help="suffixes of the members that are documents, comma-separated"
    )
    layout.add_argument(
        "--per-image-fields", type=names, help="json lists with one value per image, comma-separated"
    )
    layout.add_argument(
        "--per-text-fields", type=names, help="json lists with one value per text, comma-separated"
    )


def layout_of(
    options: argparse.Namespace, kind: str, source: str, is_compared: bool = False
) -> dict[str, Any]:
    """Return reader arguments for a format; none where it has no documents of other tools.

    Sample ids in our own data already have their prefix, as the setting is about raw shards. So only the flag
    adds another, unless the data ``is_compared`` with the raw shards that the flag is about.
    """
    from mm_assets.settings import Settings

    settings = Settings.from_environment().raw_layout()
    layout = {
        name: value if getattr(options, name) is None else getattr(options, name)
        for name, value in settings.items()
    }
    if (
        layout[_PREFIX] is not None
        and (is_compared or getattr(options, _PREFIX) is None)
        and is_ours(kind, source)
    ):
        layout[_PREFIX] = None
    accepted = {"webdataset": tuple(layout), "parquet": _PARQUET_FLAGS}.get(kind, ())
    return {name: layout[name] for name in accepted}


def refuse_inapplicable_flags(options: argparse.Namespace, kind: str, source: str) -> None:
    """Check that the flags given apply to the data at ``source``.

    Raises:
        ValueError: a flag says nothing about data of this format.
    """
    from mm_assets.formats.parquet_source import DOCUMENTS, rows_of
    from mm_assets.settings import Settings

    given = [name for name in Settings.from_environment().raw_layout() if getattr(options, name) is not None]
    if not given or kind == "webdataset":
        return
    if kind != "parquet":
        raise ValueError(f"{_flag(given[0])} is for tars and for Parquet of others, not for {kind}")
    file = _files(kind, source)[0]
    rows = rows_of(file)
    if inapplicable := [
        name for name in given if name not in (_PARQUET_FLAGS if rows == DOCUMENTS else (_PREFIX,))
    ]:
        raise ValueError(f"{_flag(inapplicable[0])} says nothing of {file}: {rows}")


def is_ours(kind: str, source: str) -> bool:
    """Return whether the first readable tar or Parquet file at ``source`` was written by this project."""
    from mm_assets.accounting.canonical import webdataset
    from mm_assets.formats.parquet_source import OURS, rows_of
    from mm_assets.formats.storage import is_remote, regular_file

    if kind not in ("parquet", "webdataset"):
        return False
    for file in _files(kind, source):
        try:
            file = file if is_remote(file) else regular_file(file)
            return rows_of(file) == OURS if kind == "parquet" else webdataset.is_ours(file)
        except (OSError, ValueError):  # this file alone fails when it is converted
            continue
    return False


def _files(kind: str, source: str) -> list[str]:
    from mm_assets.formats.listing import expand_paths
    from mm_assets.formats.raw_files import PARQUET_SUFFIXES
    from mm_assets.formats.webdataset.layout import TAR_SUFFIXES

    return expand_paths(source, PARQUET_SUFFIXES if kind == "parquet" else TAR_SUFFIXES)


def names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
