"""Converting the same again writes nothing; leftovers of a killed run are cleared away."""

from pathlib import Path

import pytest

from mm_assets.cli import main
from mm_assets.demo.shards import make_shards
from mm_assets.formats.storage import temporary_name


@pytest.fixture(autouse=True)
def _no_configured_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MM_RAW_SHARDS", raising=False)


def _look(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "lance"])
def test_second_conversion_writes_nothing(tmp_path: Path, kind: str) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=1, samples=3)
    command = ["convert", str(tmp_path / "raw"), str(tmp_path / "out"), "--to", kind]
    assert main(command) == 0
    before = _look(tmp_path / "out")
    assert main(command) == 0
    assert _look(tmp_path / "out") == before


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
