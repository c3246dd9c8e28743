"""Converting the same again writes nothing; leftovers of a killed run are cleared away."""

import os
import shutil
from pathlib import Path

import pytest

from mm_assets.cli import main
from mm_assets.storage.files import temporary_name
from mm_assets_tests.formats.datasets import FORMATS
from tools.demo import make_shards


@pytest.fixture(autouse=True)
def _no_configured_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MM_RAW_SHARDS", raising=False)


def _observe(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p): (p.stat().st_mtime_ns, p.stat().st_size)
        for p in folder.rglob("*")
        if p.is_file() and p.name != "lock"
    }


def _convert(made: Path, kind: str, target: Path) -> int:
    return main(["convert", str(made / "raw"), str(target), "--to", kind, "--workers", "1"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw shards, and a folder for each format."""
    folder = tmp_path_factory.mktemp("made")
    make_shards(folder / "raw", members=1, pdf=1, samples=2)
    assert [kind for kind in FORMATS if _convert(folder, kind, folder / kind)] == []
    return folder


@pytest.mark.parametrize("kind", FORMATS)
def test_second_conversion_writes_nothing(made: Path, kind: str) -> None:
    before = _observe(made / kind)
    assert _convert(made, kind, made / kind) == 0
    assert _observe(made / kind) == before


def test_leftovers_of_dead_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=2)
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr("os.getpid", lambda: 4_000_000)  # beyond the largest pid: surely dead
    stale = out / temporary_name("web-00000.parquet")
    monkeypatch.undo()
    stale.write_bytes(b"half")
    living = out / temporary_name("other.parquet")
    living.write_bytes(b"at work")
    assert main(["convert", str(tmp_path / "raw"), str(out), "--to", "parquet"]) == 0
    assert not stale.exists()
    assert living.exists()


@pytest.mark.parametrize("change", ["cut", "flipped", "removed"])
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_outputs_are_made_again(made: Path, tmp_path: Path, kind: str, change: str) -> None:
    """Files of the same bytes are left alone; others are not taken for them, whatever their size and time
    say.
    """
    out = shutil.copytree(made / kind, tmp_path / "out")
    files = [path for path in out.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data, before = largest.read_bytes(), largest.stat()
    if change == "removed":
        largest.unlink()
    else:
        largest.write_bytes(
            data[: len(data) // 2]
            if change == "cut"
            else data[: len(data) // 2] + b"\xff\0" + data[len(data) // 2 + 2 :]
        )
        os.utime(largest, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _convert(made, kind, out) == 0
    assert main(["verify", str(made / kind), str(out)]) == 0
