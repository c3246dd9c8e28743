"""Flags that describe the layout of documents of others, with defaults from the environment."""

from __future__ import annotations

import argparse
from typing import Any

from mm_assets.cli.arguments import names, suffixes, text
from mm_assets.formats.format_table import FORMAT_TABLE, format_of, listed

_PREFIX = "sample_id_prefix"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    layout = parser.add_argument_group("documents of others", "not given, MM_<NAME> of the environment holds")
    layout.add_argument(
        "--sample-id-field", type=text, help="json field, or column, that holds the sample id"
    )
    layout.add_argument(
        "--sample-id-prefix", choices=("shard",), help="put the partition's name in front of each sample id"
    )
    layout.add_argument(
        "--texts-field", type=text, help="json field, or column, with the list of texts (texts)"
    )
    layout.add_argument(
        "--images-field", type=text, help="json field, or column, with the list of images (images)"
    )
    layout.add_argument(
        "--image-member-field", type=text, help="json field that names the sample's image member"
    )
    layout.add_argument(
        "--image-extensions", type=suffixes, help="suffixes of image members, comma-separated"
    )
    layout.add_argument(
        "--json-extensions",
        type=suffixes,
        help="suffixes of the members that are documents, comma-separated",
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
    """Return the arguments of a format's reader that describe documents of others.

    There are none for formats without such documents. Sample ids in our own data have their prefix already:
    the setting is about raw shards. Only the flag adds another, unless ``is_compared``: then the flag is
    about the raw shards that the data are compared with.
    """
    from mm_assets.settings import Settings

    settings = Settings.load().raw_layout()
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
    return {name: layout[name] for name in format_of(kind).raw_options}


def refuse_inapplicable_flags(options: argparse.Namespace, kind: str, source: str) -> None:
    """Refuse flags that do not apply to the data of this format at ``source``.

    Raises:
        ValueError: naming the flag.
    """
    from mm_assets.accounting.canonical.accounted_format import accounted_format
    from mm_assets.settings import Settings

    given = [name for name in Settings.load().raw_layout() if getattr(options, name) is not None]
    if not given:
        return
    if not format_of(kind).raw_options:
        titles = listed(entry.title for entry in FORMAT_TABLE if entry.raw_options)
        raise ValueError(f"{_flag(given[0])} is for documents of others in {titles}, not for {kind}")
    options_for = accounted_format(kind).options_for
    if options_for is None:
        return
    file = _files(kind, source)[0]
    known, what = options_for(file)
    if inapplicable := [name for name in given if name not in known]:
        raise ValueError(f"{_flag(inapplicable[0])} says nothing of {file}: {what}")


def is_ours(kind: str, source: str) -> bool:
    """Return whether the first readable file at ``source`` was written by this project.

    Always False for formats in which others write no documents.
    """
    from mm_assets.accounting.canonical.accounted_format import accounted_format
    from mm_assets.formats.storage import is_remote, regular_file

    if not format_of(kind).raw_options:
        return False
    for file in _files(kind, source):
        try:
            return accounted_format(kind).is_ours(file if is_remote(file) else regular_file(file))
        except (OSError, ValueError):  # this file alone fails when it is converted
            continue
    return False


def _files(kind: str, source: str) -> list[str]:
    from mm_assets.formats.listing import expand_paths

    return expand_paths(source, format_of(kind).suffixes)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
