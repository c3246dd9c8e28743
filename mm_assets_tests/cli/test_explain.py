"""``mm-assets explain``: what it says of each item, for whole samples, lost ones, repeated ones, and
half-made storage.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile

from mm_assets.accounting.erasures import Entry, Erasure, ErasureStore
from mm_assets.cli import main
from mm_assets_tests.cli.documents import image, sample
from mm_assets_tests.cli.storage_root import ASSETS, fill
from mm_assets_tests.formats.raw_tars import make_tar

Table = dict[tuple[int, str, str], list[str]]  # position, modality, member -> what became of it, by asset


def explain(capsys: pytest.CaptureFixture[str], sample_id: str, root: object) -> dict[str, tuple[str, Table]]:
    """What is printed, by shard: the place of the sample, and the table."""
    assert main(["explain", sample_id, "--storage", str(root)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, *rest = out.splitlines()
    assert first.startswith("sample ")
    shards: dict[str, tuple[str, Table]] = {}
    table: Table = {}
    for line in rest:
        if not line.startswith(" "):
            shard, source = re.fullmatch(r"shard (.*), from (.*)", line).groups()  # type: ignore[union-attr]
            table = {}
            shards[shard] = (source, table)
            continue
        position, modality, source, *fates = re.split(r"\s{2,}", line.strip())
        if position == "position":
            assert fates == list(ASSETS)
        else:
            table[int(position), modality, source.split(" ")[0]] = fates
    return shards


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    make_tar(tmp_path / "raw" / "a.tar", [*sample("one"), *sample("two"), ("bad.json", b"{nope")])
    make_tar(
        tmp_path / "raw" / "sub" / "b.tar",
        [*sample("three"), *sample("broken", b"no picture"), *sample("twice")],
    )
    return tmp_path / "raw"


@pytest.fixture
def root(tmp_path: Path, raw: Path) -> Path:
    fill(str(tmp_path / "storage"), str(raw))
    return tmp_path / "storage"


ALL_KEPT = ["kept"] * len(ASSETS)


def test_every_item_from_its_shard_to_every_output(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = explain(capsys, "two", root)
    assert shards == {
        "a": (
            shards["a"][0],
            {
                (-1, "metadata", "two.json"): ALL_KEPT,
                (0, "text", "two.json"): ALL_KEPT,
                (1, "image", "two.1.png"): ALL_KEPT,
                (2, "image", "two.2.png"): [
                    "kept",
                    "filtered by aspect_ratio: wider than max_ratio (score 3.5, asked for 1..2)",
                    "absent",
                    "absent",
                    "absent",
                ],
            },
        ),
    }
    source = re.fullmatch(r"a\.tar: two\.json @(\d+)\+(\d+)", shards["a"][0])
    assert source is not None
    start, size = map(int, source.groups())
    assert b'"text of two"' in (root.parent / "raw" / "a.tar").read_bytes()[start : start + size]
    assert list(explain(capsys, "three", root)) == ["sub/b"]


def test_a_sample_that_was_never_read_is_found_by_its_key(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((source, table),) = explain(capsys, "bad", root).values()
    assert source.startswith("a.tar: bad.json @")
    ((place, fates),) = table.items()
    assert place == (-1, "metadata", "bad.json")
    assert fates[0].startswith("quarantined: bad_json: ")
    assert fates[1:] == ["absent"] * 4


def test_items_that_went_along_with_their_sample(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, table),) = explain(capsys, "broken", root).values()
    assert [fates[1:] for fates in table.values()] == [["absent"] * 4] * 4
    fault = table[1, "image", "broken.1.png"][0]
    assert fault.startswith("quarantined: undecodable_image: unreadable image")
    for place in ((-1, "metadata", "broken.json"), (0, "text", "broken.json"), (2, "image", "broken.2.png")):
        assert table[place][0].startswith(
            "quarantined: incomplete_sample: its sample has an error at position 1: unreadable image"
        )


def test_an_id_of_two_shards_is_shown_in_both(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tar(raw / "a.tar", sample("twice"))
    root = tmp_path / "storage"
    fill(str(root), str(raw), ASSETS[:3])
    only_a = tmp_path / "only"
    make_tar(only_a / "a.tar", sample("twice"))
    fill(str(tmp_path / "other"), str(only_a))
    (tmp_path / "other" / "lance").rename(root / "lance")
    shards = explain(capsys, "twice", root)
    assert list(shards) == ["a", "sub/b"]
    for shard, in_lance in (("a", "kept"), ("sub/b", "absent")):
        assert shards[shard][1][1, "image", "twice.1.png"] == ["kept", "kept", "kept", in_lance, "not made"]


def test_an_id_that_a_shard_has_twice_is_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = [("second.json", {"sample_id": "twin", "texts": ["other"]})]
    make_tar(tmp_path / "raw" / "a.tar", [*sample("twin"), *second])
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    ((source, table),) = explain(capsys, "twin", tmp_path / "storage").values()
    assert source.startswith("a.tar: twin.json @")
    assert len(table) == 6
    assert table[0, "text", "twin.json"] == ALL_KEPT
    fates = table[0, "text", "second.json"]
    assert fates[0].startswith("quarantined: duplicate_id: ")
    assert fates[1:] == ["absent"] * 4


@pytest.mark.parametrize(
    "made", [ASSETS[:1], ASSETS[:2], ASSETS[:3], (*ASSETS[:2], ASSETS[3]), (*ASSETS[:2], ASSETS[4])]
)
def test_assets_that_do_not_exist_yet(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], made: tuple[str, ...]
) -> None:
    fill(str(tmp_path / "storage"), str(raw), made)
    ((_, table),) = explain(capsys, "two", tmp_path / "storage").values()
    expected = ["kept" if asset in made else "not made" for asset in ASSETS]
    assert [fates for place, fates in table.items() if place[0] < 2] == [expected] * 3


def test_outputs_alone_are_enough(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A storage root without a ledger, or one whose curated files were cleared away."""
    (root / "ledger").rename(root.parent / "ledger")
    ((_, table),) = explain(capsys, "two", root).values()
    assert table[2, "image", "two.2.png"] == ["kept", "absent", "absent", "absent", "absent"]
    for folder in ("curated", "filtered"):
        (root / folder).rename(root.parent / folder)
    ((_, table),) = explain(capsys, "two", root).values()
    assert list(table.values()) == [["not made", "not made", "kept", "kept", "kept"]] * 3


def test_a_part_of_the_shards_is_not_made_yet(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "storage"
    fill(str(root), str(make_tar(tmp_path / "first" / "a.tar", sample("one")).parent))
    fill(str(root), str(raw), ASSETS[:2])
    ((_, table),) = explain(capsys, "three", root).values()
    assert table[0, "text", "three.json"] == ["kept", "kept", "not made", "absent", "not made"]


def test_kept_with_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tar(tmp_path / "raw" / "a.tar", sample("s", b"no picture"))
    with pytest.warns(UserWarning, match="unreadable image"):
        fill(str(tmp_path / "storage"), str(tmp_path / "raw"), policy="warn")
    ((_, table),) = explain(capsys, "s", tmp_path / "storage").values()
    fates = table[1, "image", "s.1.png"]
    assert all(fate.startswith("kept with an error: unreadable image") for fate in fates)


@pytest.mark.parametrize(
    "sample_id",
    [
        "it's",
        'a"b',
        "x.y.z",
        "日本 é",
        "a\nb\x1b[31m",
        "",
        " ",
        "%",
        "-x",
        "a" * 200,
        "a/b/../c",
        "__key__",
        "\U0001f600" * 30,
    ],
)
def test_odd_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str], sample_id: str) -> None:
    neighbours = [sample("n", sample_id=f"{sample_id}x"), sample("m", sample_id=sample_id[:-1] or "y")]
    make_tar(tmp_path / "raw" / "a.tar", [*neighbours[0], *sample("s", sample_id=sample_id), *neighbours[1]])
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    assert main(["explain", "--storage", str(tmp_path / "storage"), "--", sample_id]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 7
    assert all(character.isprintable() for line in out.splitlines() for character in line)
    assert re.findall(r"^  1 .*?(\w)\.1\.png .* kept(?: +kept){4}$", out, re.M) == ["s"]


def test_long_names_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{'long ' * 20}/x.y"
    make_tar(tmp_path / "raw" / f"{name}.tar", [*sample("s"), ("bad.json", b"")])
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    assert explain(capsys, "s", tmp_path / "storage")[name][1][0, "text", "s.json"] == ALL_KEPT
    assert list(explain(capsys, "bad", tmp_path / "storage")) == [name]


def test_after_lance_was_compacted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = lance.dataset(str(root / "lance" / "items.lance"))
    assert table.optimize.compact_files().fragments_removed == 2
    for name, shard in (("two", "a"), ("three", "sub/b")):
        ((_, lines),) = [found for key, found in explain(capsys, name, root).items() if key == shard]
        assert lines[0, "text", f"{name}.json"] == ALL_KEPT


def test_a_lance_table_that_says_nothing_of_shards(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lance.dataset(str(root / "lance" / "items.lance")).to_table()
    lance.write_dataset(rows, str(tmp_path / "bare" / "lance" / "items.lance"))
    ((shard, (source, table)),) = explain(capsys, "two", tmp_path / "bare").items()
    assert (shard, source.split(" ")[0]) == ("(not recorded)", "a.tar:")
    assert list(table.values()) == [["absent", "absent", "absent", "kept", "absent"]] * 3


HINT = "name the storage root of the graph with --storage or MM_STORAGE"


@pytest.mark.parametrize(
    ("root", "line"),
    [
        ("storage", "no sample 'tw', neither in an output nor in the ledger"),
        ("ledger-only", "no sample 'tw', neither in an output nor in the ledger"),
        ("raw", f"no output of the graph is here; {HINT}"),
        ("raw/a.tar", f"no output of the graph is here; {HINT}"),
        ("nowhere", f"no such folder; {HINT}"),
        ("raw/a.tar/x", "a part of this path is a file, not a folder"),
    ],
)
def test_an_unknown_id_or_root_is_one_line_and_exit_code_1(
    tmp_path: Path, raw: Path, capsys: pytest.CaptureFixture[str], root: str, line: str
) -> None:
    fill(str(tmp_path / "storage"), str(raw), ASSETS[:1])
    (tmp_path / "ledger-only" / "ledger").mkdir(parents=True)
    assert main(["explain", "tw", "--storage", str(tmp_path / root)]) == 1
    assert capsys.readouterr() == ("", f"mm-assets: {tmp_path / root}: {line}\n")


@pytest.mark.parametrize("command", ["explain", "show"])
def test_an_erased_id_that_was_never_here_names_its_request(
    tmp_path: Path, raw: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    fill(str(tmp_path / "storage"), str(raw), ASSETS[:1])
    erasure = Erasure.begin([Entry.of("sample_id", "nobody")])
    ErasureStore(str(tmp_path / "storage")).write(erasure)
    assert main([command, "nobody", "--storage", str(tmp_path / "storage")]) == 1
    line = f"sample 'nobody' was erased on request {erasure.id}"
    assert capsys.readouterr() == ("", f"mm-assets: {tmp_path / 'storage'}: {line}\n")


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (
            lambda file: file.write_bytes(b"garbage, not a Parquet file"),
            "no output of the graph, or damaged: Parquet magic bytes",
        ),
        (
            lambda file: file.write_bytes(b""),
            "no output of the graph, or damaged: Parquet file size is 0 bytes",
        ),
        (
            lambda file: pq.write_table(pa.table({"x": [1]}), file),
            "no output of the graph, or damaged: column 'sample_id' is missing",
        ),
    ],
)
def test_an_output_that_cannot_be_read_is_named(
    tmp_path: Path, raw: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], line: str
) -> None:
    fill(str(tmp_path / "storage"), str(raw), ASSETS[:1])
    file = tmp_path / "storage" / "curated" / "a.parquet"
    damage(file)
    assert main(["explain", "one", "--storage", str(tmp_path / "storage")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"mm-assets: {file}: {line}") and err.count("\n") == 1


def test_the_default_storage(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MM_STORAGE", str(root))
    assert main(["explain", "two"]) == 0
    monkeypatch.delenv("MM_STORAGE")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "two"]) == 1
    (tmp_path / "demo").mkdir()
    root.rename(tmp_path / "demo" / "storage")
    capsys.readouterr()
    assert main(["explain", "two"]) == 0
    assert capsys.readouterr().out.startswith("sample two\nshard a, from a.tar: two.json @")


def test_a_local_url_is_a_path(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sample_id in ("two", "broken"):
        assert explain(capsys, sample_id, f"file://{root}") == explain(capsys, sample_id, root)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """Four shards of five samples with pictures of 400 kB, on a file system that is none."""
    large = image(700, 500)
    large += bytes(400_000 - len(large))
    for shard in range(4):
        make_tar(
            tmp_path / "raw" / f"{shard}.tar",
            [member for n in range(5) for member in sample(f"{shard}-{n}", large)],
        )
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"), (*ASSETS[:3], ASSETS[4]))
    files, root = fsspec.filesystem("memory"), f"memory://explain-{uuid.uuid4().hex}"
    files.put(f"{tmp_path}/storage/", f"{root}/", recursive=True)
    yield root
    files.rm(root, recursive=True)


def test_a_remote_root_costs_footers_not_images(
    remote: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    whole = MemoryFile.read

    def counted(self: MemoryFile, *arguments: Any) -> bytes:
        nonlocal read
        data = whole(self, *arguments)
        read += len(data)
        return data

    monkeypatch.setattr(MemoryFile, "read", counted)
    ((_, table),) = explain(capsys, "2-3", remote).values()
    assert list(table.values())[0] == ["kept", "kept", "kept", "not made", "kept"]
    assert table[2, "image", "2-3.2.png"][1].startswith("filtered by aspect_ratio")
    total = sum(file["size"] for file in fsspec.filesystem("memory").find(remote, detail=True).values())
    assert total > 4 * 20 * 400_000
    assert read < 650_000, "one sample of a tar, and the footers of outputs and accounts"
