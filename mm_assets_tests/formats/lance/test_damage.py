"""A damaged table that is written once more is mended, or refused in one line: never left as it is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.cli import main
from mm_assets.formats.lance import opened
from mm_assets.formats.lance.table import LanceTable
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.datasets import batch_of, item
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = pytest.mark.usefixtures("shared_workers")

Damage = Callable[[Path], None]
PARTS = "ab"
SAMPLES = [f"{part}{number}" for part in PARTS for number in range(4)]


def batches() -> list[InterleavedBatch]:
    rows = {
        part: [item(s, at, text_content=f"text of {s}") for s in SAMPLES if s[0] == part for at in (-1, 0, 1)]
        for part in PARTS
    }
    return [batch_of(rows[part], partition=part) for part in PARTS]


def data(table: Path) -> list[Path]:
    return sorted((table / "data").iterdir())


def manifests(table: Path) -> list[Path]:
    """Oldest first: their names count down."""
    return sorted((table / "_versions").glob("*.manifest"), reverse=True)


def indexes(table: Path) -> list[Path]:
    return sorted(path for path in (table / "_indices").rglob("*") if path.is_file())


def record(table: Path) -> Path:
    return min((table / "_mm_assets" / "partitions").iterdir())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(*paths: Path, of: bytes = b"") -> None:
    """One bit of each file, in its middle or in that of the bytes ``of``, where it has them."""
    for path in paths:
        content = path.read_bytes()
        if of in content:
            at = content.index(of) + len(of) // 2 if of else len(content) // 2
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


MENDED: dict[str, Damage] = {
    "nothing": lambda table: None,
    "a data file is missing": lambda table: data(table)[0].unlink(),
    "all data files are missing": lambda table: [path.unlink() for path in data(table)] and None,
    "a data file is cut": lambda table: cut(data(table)[0]),
    "a data file is empty": lambda table: data(table)[0].write_bytes(b"") and None,
    "a text is another": lambda table: flip(*data(table), of=b"text of b1"),
    "a sample id is another": lambda table: flip(*data(table), of=b"2a2a2"),
    "a page begins elsewhere": lambda table: flip(data(table)[0]),
    "the newest manifest is missing": lambda table: manifests(table)[-1].unlink(),
    "the oldest manifest is missing": lambda table: manifests(table)[0].unlink(),
    "all but the first manifest are missing": lambda table: (
        [path.unlink() for path in manifests(table)[1:]] and None
    ),
    "all manifests are missing": lambda table: [path.unlink() for path in manifests(table)] and None,
    "the hint is cut": lambda table: cut(table / "_versions" / "latest_version_hint.json"),
    "the indexes are missing": lambda table: shutil.rmtree(table / "_indices"),
    "an index is missing": lambda table: shutil.rmtree(min((table / "_indices").iterdir())),
    "the other index is missing": lambda table: shutil.rmtree(max((table / "_indices").iterdir())),
    "files of indexes are missing": lambda table: [path.unlink() for path in indexes(table)] and None,
    "files of indexes are cut": lambda table: [cut(path) for path in indexes(table)] and None,
    "files of indexes are flipped": lambda table: flip(*indexes(table)),
    "an id in the index is another": lambda table: flip(*indexes(table), of=b"b1b1"),
    "a record is missing": lambda table: record(table).unlink(),
    "a record is cut": lambda table: cut(record(table)),
    "a record is flipped": lambda table: flip(record(table)),
    "records are flipped in their ids": lambda table: flip(
        record(table), of=record(table).read_bytes()[-200:]
    ),
    "transactions are missing": lambda table: shutil.rmtree(table / "_transactions"),
}
HARMLESS = ("nothing", "the oldest manifest is missing", "the hint is cut", "transactions are missing")
REFUSED: dict[str, Damage] = {
    "the newest manifest is cut": lambda table: cut(manifests(table)[-1]),
    "the newest manifest is empty": lambda table: manifests(table)[-1].write_bytes(b"") and None,
    "the newest manifest is flipped": lambda table: flip(manifests(table)[-1]),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    writer_for("lance", str(folder)).write(batches())
    return folder


@pytest.fixture
def table(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "out")
    return tmp_path / "out" / "items.lance"


@pytest.mark.filterwarnings("ignore:damaged partition record")
@pytest.mark.parametrize("name", MENDED)
def test_mended(table: Path, sound: Path, name: str) -> None:
    version = lance.dataset(str(table)).version
    MENDED[name](table)
    writer_for("lance", str(table.parent)).write(batches())
    assert derive("lance", str(table)) == derive("lance", str(sound / "items.lance"))
    dataset = lance.dataset(str(table))
    assert [dataset.count_rows(f"sample_id = '{sample}'") for sample in SAMPLES] == [3] * len(SAMPLES)
    assert [dataset.count_rows(f"modality = '{kind}'") for kind in ("metadata", "text", "image")] == [
        len(SAMPLES),
        2 * len(SAMPLES),
        0,
    ]
    assert sorted(index.name for index in dataset.describe_indices()) == ["modality_idx", "sample_id_idx"]
    assert {name: facts.rows for name, facts in LanceTable(table).partitions().items()} == {"a": 12, "b": 12}
    assert dataset.version == version or name not in HARMLESS


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(table: Path, name: str) -> None:
    REFUSED[name](table)
    with pytest.raises(OSError, match=f"^{re.escape(str(table))}: unreadable Lance data: [^\n]*$"):
        writer_for("lance", str(table.parent)).write(batches())


def test_a_partition_that_is_not_written_again_stays_damaged_and_is_named(table: Path) -> None:
    """Only what is written again can be mended: the rows of the other are nowhere else."""
    sound = derive("lance", str(table), "b").digest
    flip(*data(table), of=b"text of b1")
    damaged = derive("lance", str(table), "b").digest
    writer_for("lance", str(table.parent)).write(batches()[:1])
    assert derive("lance", str(table), "b").digest == damaged != sound
    data(table)[0].unlink()
    with pytest.raises(ValueError, match="items.lance: unreadable Lance data: "):
        list(reader_for("lance", str(table.parent)))


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in PARTS:
        make_tar(
            tmp_path / "raw" / f"{part}.tar",
            [(f"{s}.json", {"texts": [f"text of {s}"]}) for s in SAMPLES if s[0] == part],
        )
    command = ["convert", str(tmp_path / "raw"), str(tmp_path / "out"), "--to", "lance", "--workers", "1"]
    assert main(command) == 0
    assert (
        main(
            ["convert", str(tmp_path / "raw"), str(tmp_path / "parquet"), "--to", "parquet", "--workers", "1"]
        )
        == 0
    )
    table = tmp_path / "out" / "items.lance"
    flip(*data(table), of=b"text of")
    assert main(["verify", str(tmp_path / "parquet"), str(tmp_path / "out")]) == 1
    assert main(command) == 0
    assert main(["verify", str(tmp_path / "parquet"), str(tmp_path / "out")]) == 0
    cut(manifests(table)[-1])
    capsys.readouterr()
    for arguments in (
        command,
        ["verify", str(tmp_path / "out"), str(tmp_path / "out")],
        ["inspect", str(tmp_path / "out")],
    ):
        assert main(arguments) == 1
        assert re.fullmatch(f"mm-assets: {table}: unreadable Lance data: [^\n]*\n", capsys.readouterr().err)


def test_a_panic_of_rust_is_the_error_and_nothing_on_stderr(
    table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own text has several lines, and none names the table. What others print meanwhile is kept."""
    newest = manifests(table)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[4:])
    with pytest.raises(
        OSError, match=r"items\.lance: unreadable Lance data: PanicException: range end index"
    ):
        opened(str(table))
    assert capfd.readouterr().err == ""

    newest.write_bytes(whole)
    open_table = lance.dataset
    monkeypatch.setattr(lance, "dataset", lambda uri: os.write(2, b"a line\n") and open_table(uri))
    assert opened(str(table)).count_rows()
    assert capfd.readouterr().err == "a line\n"
