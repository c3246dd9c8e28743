"""A PDF that hangs, crashes or takes too much memory: it is refused alone, the others are read as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats.pdf import Limits, PdfProcessError, process
from mm_assets.formats.pdf.process import PdfProcess
from mm_assets.storage.errors import error_line
from mm_assets_tests.formats.pdf.pdf_files import (
    Page,
    drawn_often,
    jpeg,
    jpeg_picture,
    lines,
    packed_twice,
    pdf,
    raw_picture,
    self_drawing,
    text,
)
from mm_assets_tests.formats.pdf.reading import members, without_refused

PLACE = (50.0, 400.0, 120.0, 80.0)
GOOD = {
    "a.pdf": pdf([Page(lines(["first"], 50, 700), [jpeg_picture(jpeg(9, 9, 200), PLACE)])], "/Title (One)"),
    "z.pdf": pdf([Page(lines(["last"], 50, 700), [raw_picture(bytes(range(48)), 4, 4, PLACE)]), Page()]),
}
MARKED = pdf([Page(text("this one", 50, 700))])  # a sound one, whose process something happens to
LITTLE_MEMORY = Limits(memory=128 << 20)
LITTLE_TIME = Limits(page_seconds=1)

HOSTILE: dict[str, tuple[Callable[[], bytes], Limits, str]] = {
    "draws itself": (self_drawing, LITTLE_MEMORY, "needs more than 128 MiB of memory"),
    "packed twice": (lambda: packed_twice(400 << 20), LITTLE_MEMORY, "needs more than 128 MiB of memory"),
    "drawn often": (
        lambda: drawn_often(2000, 1000),
        LITTLE_TIME,
        "took longer than 1 s of CPU time at page 1",
    ),
    "many texts": (
        lambda: pdf([Page(b"BT /F1 10 Tf 50 700 Td\n" + b"(a) Tj\n" * 500_000 + b"ET")]),
        LITTLE_TIME,
        "took longer than 1 s of CPU time at page 1",
    ),
    "many pages": (
        lambda: pdf([Page(b"BT /F1 10 Tf 50 700 Td\n" + b"(a) Tj\n" * 40_000 + b"ET")] * 20),
        Limits(document_seconds=1),
        "took longer than 1 s of CPU time",
    ),
    "many items": (
        lambda: pdf([Page(lines(["a", "b", "c"], 50, 700))]),
        Limits(items=2),
        "more than 2 lines and images",
    ),
    "too many pages": (
        lambda: pdf([Page(), Page(), Page()]),
        Limits(pages=2),
        "3 pages, at least 1 and at most 2",
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is read of sound files alone."""
    return members(tmp_path_factory.mktemp("good"), GOOD)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pdf_is_refused_and_the_others_have_the_same_bytes(
    tmp_path: Path, good: Any, name: str
) -> None:
    make, limits, reason = HOSTILE[name]
    found = members(tmp_path, {**GOOD, "bad.pdf": make()}, limits)
    assert without_refused(found) == (good, {"bad": f"docs/bad.pdf: {reason}"})


def _send_signal(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, times: int = 9) -> list[int]:
    """Send a signal to each process that is about to read `MARKED`; return the signals that are left."""
    send, left = PdfProcess.send, [number.value] * times

    def marked(self: PdfProcess, header: dict[str, object], body: bytes = b"") -> None:
        if body == MARKED and left:
            os.kill(self.pid, left.pop())
        send(self, header, body)

    monkeypatch.setattr(PdfProcess, "send", marked)
    return left


@pytest.mark.parametrize(
    "name", ["m.pdf", "0.pdf"]
)  # read by a process that has read others, or by a new one
def test_a_crash_costs_one_pdf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: Any, name: str) -> None:
    _send_signal(monkeypatch, signal.SIGSEGV)
    found = members(tmp_path, {**GOOD, name: MARKED})
    stem = name.removesuffix(".pdf")
    assert without_refused(found) == (good, {stem: f"docs/{name}: pdfium crashed (signal 11)"})


def test_a_process_that_stops_for_ever_costs_one_pdf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: Any
) -> None:
    _send_signal(monkeypatch, signal.SIGSTOP)
    found = members(tmp_path, {**GOOD, "m.pdf": MARKED}, Limits(silent_seconds=5))
    assert without_refused(found) == (good, {"m": "docs/m.pdf: took longer than 5 s to be opened"})


def test_a_crash_that_others_may_have_caused_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**GOOD, "m.pdf": MARKED}
    expected = members(tmp_path / "before", files)
    left = _send_signal(monkeypatch, signal.SIGSEGV, times=1)
    assert members(tmp_path, files) == expected
    assert left == []


def test_a_process_that_others_kill_is_no_fault_of_the_pdf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send_signal(monkeypatch, signal.SIGKILL)
    with pytest.raises(PdfProcessError) as caught:
        members(tmp_path, {**GOOD, "m.pdf": MARKED})
    assert error_line(caught.value).startswith(
        "the process that reads PDFs was killed, as the kernel does when memory runs out, where fewer "
    )


def test_memory_is_that_of_one_pdf(tmp_path: Path) -> None:
    side = 2000
    large = pdf(
        [Page(pictures=[raw_picture(bytes(range(200)) * (side * side * 3 // 200), side, side, PLACE)])]
    )
    files = {f"large{number}.pdf": large for number in range(6)}
    expected = members(tmp_path / "alone", files)
    found = members(tmp_path, {"bomb.pdf": self_drawing(), **files, "m.pdf": self_drawing()}, LITTLE_MEMORY)
    good, reasons = without_refused(found)
    assert (good, sorted(reasons)) == (expected, ["bomb", "m"])


_READ = """
import sys
from pathlib import Path
from mm_assets.formats.pdf import Limits
from mm_assets_tests.formats.pdf.reading import members
from mm_assets_tests.formats.pdf.pdf_files import drawn_often
members(Path(sys.argv[1]), {"a.pdf": drawn_often(20_000, 8)}, Limits(page_seconds=9999))
"""


def test_the_process_dies_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _READ, str(tmp_path)])
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    try:
        while not (found := children.read_text().split()) or _ticks(found[0]) < 100:  # in the middle of it
            assert parent.poll() is None
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    (child,) = found
    for _ in range(1000):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.01)
    os.kill(int(child), signal.SIGKILL)
    pytest.fail("it is still there")


def _ticks(pid: str) -> int:
    """Return the CPU time of a process in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_no_module_of_the_users_folder_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: Any
) -> None:
    for name in ("json", "PIL", "pypdfium2", "mm_assets", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert members(tmp_path, GOOD) == good


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("/no/python", "the process that reads PDFs does not start: "),
        ("/bin/false", "the process that reads PDFs has ended: exit status 1"),
    ],
)
def test_a_process_that_does_not_start_is_no_fault_of_a_pdf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(PdfProcessError) as caught:
        members(tmp_path, GOOD)
    assert error_line(caught.value).startswith(says)


def test_a_limit_of_the_machine_is_no_fault_of_a_pdf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -v 1500000\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(limited))
    with pytest.raises(
        PdfProcessError, match=r"address space is limited to 1464 MiB \(ulimit -v\); PDFs need"
    ):
        members(tmp_path, GOOD)


_LIAR = """
import socket, struct, sys
file = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
def send(header, size=0, body=b""):
    file.write(struct.pack(">II", len(header), size) + header + body)
    file.flush()
def take():
    length, size = struct.unpack(">II", file.read(8))
    file.read(length + size)
def describe():
    described = b'{"sizes": [[600, 800]], "title": null, "author": null}'
    send(b'{"document": 1}', len(described), described)
    take()
send(b"{}")
take()
"""
_PLACE = '"page": 1, "number": 1, "box": [0, 0, 1, 1]'
_TEXT = f'describe(); send(b\'{{"content": "text", {_PLACE}}}\''
_PICTURE = f'describe(); send(b\'{{"content": "picture", {_PLACE}'
_NONSENSE = "the process that reads it sends nonsense"


@pytest.mark.parametrize(
    ("lies", "says"),
    [
        ("send(b' ' * 99_999)", _NONSENSE),
        ("send(b'[]')", _NONSENSE),
        ("send(b'[' * 9999)", _NONSENSE),
        ("send(b'{}', 1 << 31)", _NONSENSE),
        ("send(b'{}', 2, b'{}')", _NONSENSE),
        (_TEXT + ", 1 << 31)", "more than 67108864 characters of text"),
        (_TEXT + ", 1, b'\\xff')", _NONSENSE),
        (_TEXT.replace('"page": 1', '"page": 2') + ")", _NONSENSE),
        (_PICTURE + ', "suffix": "png"}\', 1 << 31)', "its images take more than 1073741824 bytes"),
        (_PICTURE + ', "suffix": "/../x"}\')', _NONSENSE),
        (_PICTURE + ', "suffix": "jpg", "offset": 99999}\')', _NONSENSE),
        (_TEXT.replace("[0, 0, 1, 1]", f"[{'9' * 400}, 0, 1, 1]") + ")", _NONSENSE),
        (_TEXT.replace('"number": 1', '"number": 99999999999') + ")", _NONSENSE),
        ("describe(); send(b'{\"end\": true}', 2, b'{}')", _NONSENSE),
        ("while True: send(b'{\"page\": 1}')", _NONSENSE),
        (f'describe()\nwhile True: send(b\'{{"content": "text", {_PLACE}}}\')', _NONSENSE),
    ],
)
def test_a_process_that_is_taken_over_costs_its_pdf_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: str, says: str
) -> None:
    script = tmp_path / "liar.py"
    script.write_text(f"{_LIAR}{lies}\nfile.read()\n")
    monkeypatch.setattr(process, "_START", script)
    _, reasons = without_refused(members(tmp_path, {"a.pdf": MARKED}, Limits(items=1000)))
    assert reasons == {"a": f"docs/a.pdf: {says}"}
