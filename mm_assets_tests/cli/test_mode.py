"""``mm-assets convert --mode`` and ``--dry-run``: another data set's partition of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import only_line, run
from mm_assets_tests.cli.documents import document
from mm_assets_tests.formats.datasets import FORMATS, read
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two data sets with a partition of the same name; the second has one more."""
    make_tar(tmp_path / "one" / "s.tar", document("d1"))
    make_tar(tmp_path / "other" / "s.tar", document("d2"))
    make_tar(tmp_path / "other" / "t.tar", document("d3"))
    return tmp_path / "one", tmp_path / "other"


def samples(kind: str, out: Path) -> set[str]:
    return set(read(kind, out).column("sample_id").to_pylist())


def look(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_another_data_set_is_not_overwritten_unasked(
    tmp_path: Path, two: tuple[Path, Path], kind: str
) -> None:
    one, other = two
    out = tmp_path / "out"
    assert run("convert", one, out, "--to", kind).returncode == 0
    before = look(out)
    line = only_line(run("convert", other, out, "--to", kind))
    assert "is there already, from another source; nothing was written" in line
    assert "--mode" in line
    assert look(out) == before

    done = run("convert", other, out, "--to", kind, "--mode", "ignore")
    assert done.returncode == 0
    assert "left alone, as they are from another source: 1 partition" in done.stdout
    assert samples(kind, out) == {"d1", "d3"}

    assert run("convert", other, out, "--to", kind, "--mode", "overwrite").returncode == 0
    assert samples(kind, out) == {"d2", "d3"}
    assert run("convert", other, out, "--to", kind).returncode == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_dry_run_says_what_would_become_of_each_partition(
    tmp_path: Path, two: tuple[Path, Path], kind: str
) -> None:
    one, other = two
    out = tmp_path / "out"
    done = run("convert", one, out, "--to", kind, "--dry-run")
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"would write {out}")
    assert line.endswith("(new)")
    assert not out.exists()

    assert run("convert", one, out, "--to", kind).returncode == 0
    before = look(tmp_path)
    (line,) = run("convert", one, out, "--to", kind, "--dry-run").stdout.splitlines()
    assert line.startswith(f"would replace {out}")
    assert line.endswith("(there already, from the same source)")
    for mode, verb, code in (
        ("error", "refuse", 1),
        ("ignore", "leave alone", 0),
        ("overwrite", "replace", 0),
    ):
        done = run("convert", other, out, "--to", kind, "--dry-run", "--mode", mode)
        first, second = done.stdout.splitlines()
        assert first.startswith(f"would {verb} {out}")
        assert first.endswith("(there already, from another source)")
        assert second.startswith(f"would write {out}")
        assert (done.returncode, done.stderr) == (code, "")
    assert look(tmp_path) == before


def test_files_of_somebody_else_are_not_overwritten(tmp_path: Path, two: tuple[Path, Path]) -> None:
    one, _ = two
    out = tmp_path / "out"
    out.mkdir()
    (out / "s.parquet").write_bytes(b"mine")
    assert "from a source that is not recorded" in only_line(run("convert", one, out, "--to", "parquet"))
    assert (out / "s.parquet").read_bytes() == b"mine"
    assert run("convert", one, out, "--to", "parquet", "--mode", "overwrite").returncode == 0
    assert samples("parquet", out) == {"d1"}


def test_a_partition_that_fails_does_not_take_the_name(tmp_path: Path, two: tuple[Path, Path]) -> None:
    one, other = two
    out = tmp_path / "out"
    assert run("convert", one, out, "--to", "parquet").returncode == 0
    before = (out / "s.parquet").read_bytes()
    (other / "s.tar").write_bytes(b"no tar at all" * 100)
    assert run("convert", other, out, "--to", "parquet", "--mode", "overwrite").returncode == 1
    assert (out / "s.parquet").read_bytes() == before
    assert run("convert", one, out, "--to", "parquet").returncode == 0
