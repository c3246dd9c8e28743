"""What a run prints on a terminal: never more than its width, and nothing that stays."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import environment
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.mark.parametrize("columns", [120, 40])
def test_the_progress_line(columns: int, tmp_path: Path) -> None:
    for name in "ab":
        make_tar(tmp_path / "raw" / f"{name}.tar", [(f"{name}.json", {"texts": ["x"], "images": [None]})])
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    settings = environment(
        MM_RAW_SHARDS=str(tmp_path / "raw"), MM_STORAGE=str(tmp_path / "out"), MM_WORKERS="1"
    )
    command = [sys.executable, "-m", "mm_assets.cli", "run", "--assets", "curated_parquet,image_scores"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=settings, stdout=subprocess.PIPE, stderr=terminal, text=True
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
    lines = shown.decode().split("\r")
    assert lines[-1] == "\x1b[K", "nothing stays"
    texts = [line.removesuffix("\x1b[K") for line in lines if line not in ("", "\x1b[K")]
    assert max(map(len, texts)) < columns
    assert "\n" not in shown.decode()
    if columns == 120:
        pattern = r"\[#+-*\] (\w+) (\d)/2(?:, \d+ samples/s)?, \d+ s, \d+ s left"
        found = [re.fullmatch(pattern, text) for text in texts]
        assert [match.groups() for match in found if match] == [
            *(
                ("curated_parquet", "1"),
                ("curated_parquet", "2"),
                ("image_scores", "1"),
                ("image_scores", "2"),
            )
        ]
    assert "[#" not in printed
