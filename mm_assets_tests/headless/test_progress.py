"""What runs and conversions print on a terminal: never more than its width, and no line breaks another."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from mm_assets_tests.cli.commands import environment
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.headless.conftest import ASSETS


def on_terminal(folder: Path, *arguments: str, columns: int) -> tuple[str, str]:
    """What a command prints on a terminal that is its stderr, and on stdout; it reads two shards, ``raw``."""
    for name in "" if (folder / "raw").exists() else "ab":
        make_tar(folder / "raw" / f"{name}.tar", [(f"{name}.json", {"texts": ["x"], "images": [None]})])
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    settings = environment(MM_RAW_SHARDS=str(folder / "raw"), MM_STORAGE=str(folder / "out"), MM_WORKERS="1")
    command = [sys.executable, "-m", "mm_assets.cli", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=terminal, text=True
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(controller, 65536):
                shown += chunk
        except OSError:  # Linux: the last writer has closed the terminal
            pass
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(controller)
    assert process.returncode == 0, printed
    return shown.decode(), printed


def test_warnings_of_workers_break_no_progress_line(tmp_path: Path) -> None:
    arguments = ("convert", "raw", "out", "--to", "parquet", "--fields", "gone", "--workers", "2")
    shown, printed = on_terminal(tmp_path, *arguments, columns=200)
    assert printed.startswith("out: 2 partitions, 2 samples")
    *lines, last = shown.split("\r\n")
    told = [line.rpartition("\r\x1b[K")[2] for line in lines[:-1]]
    assert sorted(told) == [
        f"mm-assets: warning: {tmp_path}/raw/{name}.tar: fields not found, filled with null: gone"
        for name in "ab"
    ]
    drawn = [text.removesuffix("\x1b[K") for text in lines[-1].split("\r") if "[" in text]
    done = r"\[#{24}\] 2/2 partitions, 2 samples, \d+ samples/s, 0 MB, \d+ s, 0 s left"
    assert re.fullmatch(done, drawn[-1]) and last == ""


def test_a_narrow_terminal_and_one_where_there_is_nothing_to_do(tmp_path: Path) -> None:
    shown, printed = on_terminal(tmp_path, "run", columns=40)
    assert max(map(len, _texts(shown))) < 40
    assert "[#" not in printed
    shown, printed = on_terminal(tmp_path, "run", columns=120)
    assert printed.startswith("nothing to do: 2 shards up to date")
    texts = [text.partition("] ")[2] for text in _texts(shown) if "]" in text]
    assert texts[0] == "looking for what there is to do"
    assert set(texts[1:]) == {f"looking at {asset}: 2 shards" for asset in ASSETS}


def test_the_progress_line(tmp_path: Path) -> None:
    shown, printed = on_terminal(tmp_path, "run", "--assets", "curated_parquet,image_scores", columns=120)
    texts = _texts(shown)
    assert max(map(len, texts)) < 120
    pattern = r"\[#+-*\] (\w+) (\d)/2(?:, \d+ samples/s)?, \d+ s, \d+ s left"
    found = [re.fullmatch(pattern, text) for text in texts]
    assert [match.groups() for match in found if match] == [
        *(("curated_parquet", "1"), ("curated_parquet", "2"), ("image_scores", "1"), ("image_scores", "2"))
    ]
    assert "[#" not in printed


def _texts(shown: str) -> list[str]:
    """What was drawn in the one line, of which nothing stays."""
    *lines, last = shown.split("\r")
    assert last == "\x1b[K" and "\n" not in shown
    return [line.removesuffix("\x1b[K") for line in lines if line not in ("", "\x1b[K")]
