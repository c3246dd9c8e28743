"""The flag ``--storage`` of commands that work on the outputs of the graph."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mm_assets.cli.arguments import location

if TYPE_CHECKING:
    from mm_assets.settings import Settings


def add_storage_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag to a command."""
    parser.add_argument(
        "--storage",
        type=location,
        help="storage root of the graph, a folder or URL (default: MM_STORAGE, else demo/storage)",
    )


def storage_root(options: argparse.Namespace) -> str:
    """Return the storage root that the flag names, else that of the settings, as absolute path or URL."""
    from mm_assets.formats.storage import absolute
    from mm_assets.settings import Settings

    return _normal(absolute(options.storage)) if options.storage else settings_root(Settings.load())


def settings_root(settings: Settings) -> str:
    """Return the storage root of the settings, as absolute path or URL."""
    from mm_assets.formats.storage import absolute

    return _normal(absolute(settings.storage))


def refuse_other_folder(root: str) -> None:
    """Raise ``FileNotFoundError`` for a missing storage root, or one without any output or ledger."""
    from mm_assets.accounting.ledger import LEDGER_FOLDER
    from mm_assets.accounting.outputs import OUTPUTS
    from mm_assets.formats.absent_paths import absent
    from mm_assets.formats.storage import filesystem

    hint = "name the storage root of the graph with --storage or MM_STORAGE"
    fs, path = filesystem(root)
    try:
        found = {name.rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False)}
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{absent(root, fs, path, 'folder')}; {hint}") from error
    if found.isdisjoint({LEDGER_FOLDER, *(output.folder.partition("/")[0] for output in OUTPUTS)}):
        raise FileNotFoundError(f"{root}: no output of the graph is here; {hint}")


def _normal(root: str) -> str:
    return root.rstrip("/") or "/"
