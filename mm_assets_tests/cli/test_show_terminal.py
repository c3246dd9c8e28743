"""``mm-assets show`` in a terminal: pictures in colour."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from mm_assets_tests.cli.commands import environment, ok
from mm_assets_tests.formats.raw_tars import make_tar


def in_terminal(*arguments: object, **settings: str) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mm_assets.cli", *map(str, arguments)],
        stdout=theirs, env=environment(COLUMNS="60", **settings),
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # it has ended
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert process.wait() == 0
    return written.decode().replace("\r\n", "\n")


def test_pictures_where_the_terminal_has_colours(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "p.png"
    picture = Image.new("RGB", (2, 3), (255, 0, 0))
    picture.putpixel((0, 1), (0, 0, 255))
    picture.save(path)
    make_tar(
        tmp_path / "raw" / "a.tar",
        [
            ("s.json", {"texts": [None, "x \x1b[2J " + "long " * 20], "images": ["p.png", None]}),
            ("p.png", path.read_bytes()),
        ],
    )
    plain = ok("show", "s", tmp_path / "raw", COLORTERM="truecolor")
    assert "\x1b" not in plain and "▀" not in plain
    assert "\x1b" not in in_terminal("show", "s", tmp_path / "raw", COLORTERM="")
    lines = in_terminal("show", "s", tmp_path / "raw", COLORTERM="truecolor").splitlines()
    assert lines[2:5] == [
        f"[0] image 2x3 png {path.stat().st_size} B",
        "    \x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀\x1b[38;2;255;0;0m\x1b[48;2;255;0;0m▀\x1b[0m",
        "    \x1b[38;2;255;0;0m▀\x1b[38;2;255;0;0m▀\x1b[0m",
    ]
    assert lines[5:7] == ["[1] text", "    x \\x1b[2J long long long long long long long long long"]
    assert max(len(line) for line in lines[5:]) <= 60
