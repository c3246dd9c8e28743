"""The command ``mm-assets show SAMPLE_ID``: one sample to look at, in the terminal or as an HTML page."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mm_assets.cli import raw_layout
from mm_assets.cli.arguments import as_utf8, location
from mm_assets.cli.explain import unknown_sample
from mm_assets.cli.html_file import refuse_other_than_file, write_page
from mm_assets.cli.storage_root import add_storage_flag, refuse_other_folder
from mm_assets.formats.format_table import TITLES
from mm_assets.interleaved.counted import counted
from mm_assets.terminal import FAILED, fail, printable

if TYPE_CHECKING:
    from mm_assets.sample_view.document import Document, Look

_WIDTH = 100  # of lines that go into a file or another program


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show", help="show one sample, its texts and images in order, and what was dropped and why"
    )
    parser.add_argument("sample_id")
    parser.add_argument(
        "src",
        nargs="?",
        type=location,
        help=f"file, folder, glob or URL of {TITLES} data (default: the outputs of the graph)",
    )
    parser.add_argument(
        "--html", type=location, metavar="FILE", help="write one HTML page with the images; - is stdout"
    )
    add_storage_flag(parser)
    raw_layout.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the sample, or write its page.

    Raises:
        ValueError: the id is unknown.
    """
    from mm_assets.sample_view.html_page import embedding, sample_page
    from mm_assets.sample_view.terminal_page import coloured, no_picture

    sample_id = as_utf8(options.sample_id)
    if options.html:
        refuse_other_than_file(options.html)
    is_terminal = sys.stdout.isatty()
    has_colours = is_terminal and os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    look = embedding() if options.html else coloured if has_colours else no_picture
    notes: list[str] = []
    failures: list[str] = []
    if options.src is None:
        documents = _in_storage(options, sample_id, look)
    else:
        documents, notes, failures = _in_dataset(options, sample_id, look)
    if options.html:
        write_page(options.html, sample_page(sample_id, documents, notes))
    else:
        _print(sample_id, documents, notes, is_terminal)
    for failure in failures:
        fail(failure)
    return FAILED if failures else 0


def _in_storage(options: argparse.Namespace, sample_id: str, look: Look) -> list[Document]:
    from mm_assets.accounting.history import surveyed_in
    from mm_assets.formats.error_places import located
    from mm_assets.formats.storage import local_path
    from mm_assets.sample_view.from_storage import documents_in_storage, ids_alike
    from mm_assets.settings import Settings

    if given := [name for name in Settings.load().raw_layout() if getattr(options, name) is not None]:
        raise ValueError(f"--{given[0].replace('_', '-')} is about documents of others: name their data")
    root = local_path(options.storage or Settings.load().storage)
    with located(root):
        refuse_other_folder(root)
        documents = documents_in_storage(root, sample_id, look)
        if not documents:
            line = unknown_sample(root, sample_id, surveyed_in(root, sample_id))
            raise ValueError(line + _hint(ids_alike(root, sample_id)))
    return documents


def _in_dataset(
    options: argparse.Namespace, sample_id: str, look: Look
) -> tuple[list[Document], list[str], list[str]]:
    """Return the sample in each partition, notes on the search, and a line for what cannot be read."""
    from mm_assets.formats.error_places import located
    from mm_assets.formats.made_shards import location_of
    from mm_assets.formats.registry import detect_format
    from mm_assets.sample_view.from_dataset import search

    if options.storage is not None:
        raise ValueError("--storage names outputs of the graph: give it, or other data, not both")
    source = location_of(options.src)
    with located(source):
        kind = detect_format(source)
        raw_layout.refuse_inapplicable_flags(options, kind, source)
        layout = raw_layout.layout_of(options, kind, source)
    found = search(source, kind, layout, sample_id, look)
    if not found.documents:
        line = f"{source}: no sample {sample_id!r}{_hint(found.alike)}"
        raise ValueError("; ".join([line, *found.failures]))
    notes = []
    if found.unsearched:
        notes.append(f"{counted(found.unsearched, 'further shard')} not looked in, as it was found before")
    return found.documents, notes, found.failures


def _hint(alike: Sequence[str]) -> str:
    return f"; ids that contain it: {', '.join(map(repr, alike))}" if alike else ""


def _print(sample_id: str, documents: Sequence[Document], notes: Sequence[str], is_terminal: bool) -> None:
    from mm_assets.sample_view.terminal_page import lines

    width = shutil.get_terminal_size((_WIDTH, 0)).columns if is_terminal else _WIDTH
    print(f"sample {printable(sample_id)}")
    for document in documents:
        for line in lines(document, width):
            print(line)
    for note in notes:
        print(note)
