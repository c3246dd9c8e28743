"""The flag ``--storage`` of commands that work on the outputs of the graph."""

from __future__ import annotations

import argparse


def add_storage_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag to a command."""
    parser.add_argument(
        "--storage",
        help="storage root of the graph, a folder or URL (default: MM_STORAGE, else demo/storage)",
    )


def storage_root(options: argparse.Namespace) -> str:
    """Return the storage root that the flag names, else that of the settings, as absolute path or URL."""
    from mm_assets.formats.storage import absolute
    from mm_assets.settings import Settings

    root = absolute(options.storage or Settings.from_environment().storage)
    return root.rstrip("/") or "/"
