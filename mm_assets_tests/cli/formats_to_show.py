"""The same samples in each format, and what ``mm-assets show`` says of one of them."""

from __future__ import annotations

from pathlib import Path

from mm_assets_tests.cli.commands import run
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.formats.raw_tars import make_tar

ITEMS = """\
  url: https://x/y
  tags: ["a","b"]
[0] text
    text of two
[1] image 30x20 png 72 B
[2] image 70x20 png 77 B
"""


def fill_formats(folder: Path) -> Path:
    """Raw shards, and the same samples in each format."""
    make_tar(folder / "raw" / "a.tar", [*sample("one"), *sample("two", url="https://x/y", tags=["a", "b"])])
    make_tar(folder / "raw" / "sub" / "b.tar", [*sample("three"), ("bad.json", b"{nope")])
    for kind in ("parquet", "webdataset", "lance", "arrow_cache", "jsonl"):
        arguments = ("--to", kind, "--on-materialize-error", "drop_row")
        run("convert", folder / "raw", folder / kind, *arguments)
    return folder
