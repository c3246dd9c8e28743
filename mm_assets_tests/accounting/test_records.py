"""Records are published whole, with the rows of their account, found again by asset and shard, and never stop
a run when one is damaged.
"""

import json
import logging
import os
import uuid
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import Balance, ShardRecord, account_table
from mm_assets.accounting.accounts import Ledger
from mm_assets.storage.small_files import seal
from mm_assets.storage.stamps import stat_outputs
from mm_assets_tests.accounting.losses import BAD_JSON


@pytest.fixture(params=["local", "file url", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "local":
            return str(tmp_path)
        case "file url":
            return f"file://{tmp_path}"
        case _:
            return f"memory://records-{uuid.uuid4().hex}"


def record(key: str, version: str = "v1") -> ShardRecord:
    metadata = {
        "rows": 3,
        "share": 0.5,
        "strip": {"md": "ä | b"},
        "schema": {"table_schema": [["a", "string"]]},
    }
    checks = [{"name": "not_empty", "passed": True, "severity": "ERROR", "metadata": {"rows": 3}}]
    return ShardRecord(
        "curated",
        key,
        "f1",
        version,
        f"/out/{key}",
        {"size": 5, "mtime_ns": 7},
        metadata,
        checks,
        rows_digest="0" * 32,  # of no rows
    )


def put(root: str, name: str, data: bytes) -> str:
    uri = f"{root}/{name}"
    fs, path = fsspec.core.url_to_fs(uri)
    fs.makedirs(os.path.dirname(path), exist_ok=True)
    fs.pipe_file(path, data)
    return uri


def test_what_was_written_is_read(root: str) -> None:
    ledger = Ledger(root)
    keys = ["train/a.b", "train/a_b", "ü", "_hidden", "x" * 300]
    for key in keys:
        ledger.write(record(key))
    assert Ledger(root).records("curated", [*keys, "missing"]) == {key: record(key) for key in keys}
    assert ledger.records("filtered", keys) == {}


def test_nothing_written_yet(root: str) -> None:
    assert Ledger(root).records("curated", ["a"]) == {}


def test_later_record_replaces_the_earlier(root: str) -> None:
    ledger = Ledger(root)
    ledger.write(record("a"))
    ledger.write(record("a", "v2"))
    assert ledger.records("curated", ["a"]) == {"a": record("a", "v2")}


def test_a_record_that_was_written_here_is_read_as_it_lies_there(root: str) -> None:
    ledger = Ledger(root)
    written = ledger.write(record("a"))
    stored = ledger.records("curated", ["a"])
    written.remember()
    assert ledger.records("curated", ["a"]) == stored
    Ledger(root).write(record("a", "v2"))  # as another process does
    assert ledger.records("curated", ["a"])["a"].version == "v2"
    fs, path = fsspec.core.url_to_fs(written.uri)
    fs.rm_file(path)
    assert ledger.records("curated", ["a"]) == {}


def test_place_is_below_ledger_and_escaped(tmp_path: Path) -> None:
    Ledger(str(tmp_path)).write(record("train/a.b"))
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()] == [
        "ledger/accounts/curated/train%2Fa%2Eb.parquet"
    ]


def test_records_move_with_the_data_and_name_no_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    inside = replace(record("a"), uri=f"{old}/curated/a.parquet")
    for known in (inside, replace(record("b"), uri="s3://elsewhere/b"), replace(record("c"), uri="")):
        Ledger(f"{old}/").write(known)
    assert str(tmp_path).encode() not in (old / "ledger/accounts/curated/a.parquet").read_bytes()
    old.rename(new)
    found = Ledger(str(new)).records("curated", ["a", "b", "c"])
    assert {key: known.uri for key, known in found.items()} == {
        "a": f"{new}/curated/a.parquet",
        "b": "s3://elsewhere/b",
        "c": "",
    }


def test_failed_write_leaves_the_previous_record_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.write(record("a"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        ledger.write(record("a", "v2"))
    assert ledger.records("curated", ["a"]) == {"a": record("a")}
    assert [p.name for p in (tmp_path / "ledger/accounts/curated").iterdir()] == ["a.parquet"]


def sealed(**fields: object) -> bytes:
    table = account_table("curated", "a").replace_schema_metadata({"mm_assets:record": seal(fields)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


OTHER = {"asset": "x", "key": "y", "fingerprint": "", "version": "", "uri": ""}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"PAR1",
        b"\xff\xfe",
        b"{}",
        sealed(format=5, asset="curated", key="a"),
        sealed(**{**OTHER, "asset": "curated", "key": "a"}, format=4),
        sealed(**OTHER, format=5),
        sealed(**{**OTHER, "asset": "curated"}, format=5),
    ],
    ids=[
        "empty",
        "torn",
        "no text",
        "json",
        "fields missing",
        "another format",
        "of another",
        "another shard",
    ],
)
def test_damaged_record_counts_as_missing_and_is_told(
    root: str, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(root)
    ledger.write(record("a"))
    ledger.write(record("b"))
    put(root, "ledger/accounts/curated/a.parquet", damage)
    with caplog.at_level(logging.WARNING):
        assert ledger.records("curated", ["a", "b"]) == {"b": record("b")}
    assert "curated/a.parquet is unreadable, the next run makes its shard again" in caplog.text
    assert (ledger.partitions("curated"), sorted(ledger.named("curated"))) == (["b"], ["a", "b"])


def test_no_flipped_byte_is_believed(tmp_path: Path) -> None:
    """Else one byte decides whether a shard is made again, or what a proof compares it with.

    Every third byte, and each bit in turn.
    """
    ledger = Ledger(str(tmp_path))
    balance = Balance(3, 2, {}, {"bad_json": 1})
    ledger.write(record("a"), account_table("curated", "a", balance, [BAD_JSON]))
    path = tmp_path / "ledger/accounts/curated/a.parquet"
    whole, (known,) = path.read_bytes(), ledger.records("curated", ["a"]).values()
    items = ledger.items("curated", "a")
    noticed = 0
    places = range(0, len(whole), 3)
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        found = ledger.records("curated", ["a"])
        assert not found or found["a"] == known, at
        problems = ledger.problems([known])
        noticed += bool(problems) or not found
        assert problems or ledger.items("curated", "a").equals(items), at
    assert noticed > len(places) / 3


def test_the_record_is_in_the_end_of_a_large_account(root: str) -> None:
    """Of a remote account only the end is read."""
    losses = [replace(BAD_JSON, sample_id=f"{n}-{uuid.uuid4().hex}") for n in range(5000)]
    Ledger(root).write(record("a"), account_table("curated", "a", Balance(5000, 0, {}, {}), losses))
    large = replace(record("b"), metadata={"long": [uuid.uuid4().hex for _ in range(9000)]})
    Ledger(root).write(large)
    found = Ledger(root).records("curated", ["a", "b"])
    assert (found["a"].lost_rows, found["b"].metadata) == (5000, large.metadata)
    assert Ledger(root).items("curated", "a").num_rows == 5000


def test_stat_tells_changed_and_missing_outputs(root: str) -> None:
    uri, gone = put(root, "data/a.bin", b"12345"), f"{root}/data/gone.bin"
    before = stat_outputs([uri, gone])
    assert before[gone] is None
    assert (before[uri] or {})["size"] == 5
    assert stat_outputs([uri]) == {uri: before[uri]}
    put(root, "data/a.bin", b"54321")
    if not root.startswith("memory:"):
        os.utime(uri.removeprefix("file://"), ns=(1, 1))
    assert stat_outputs([uri]) != {uri: before[uri]}


def test_stat_of_a_folder_is_that_of_its_files(root: str) -> None:
    folder = f"{root}/cache"
    fs, path = fsspec.core.url_to_fs(folder)
    fs.makedirs(path, exist_ok=True)
    fs.pipe_file(f"{path}/a.arrow", b"1234")
    fs.pipe_file(f"{path}/_metadata.json", b"{}")
    before = stat_outputs([folder])
    assert {name: stat["size"] for name, stat in (before[folder] or {})["files"].items()} == {
        "_metadata.json": 2,
        "a.arrow": 4,
    }
    assert json.loads(json.dumps(before)) == before
    assert stat_outputs([folder]) == before
    fs.pipe_file(f"{path}/a.arrow", b"12345")
    assert stat_outputs([folder]) != before
    fs.rm_file(f"{path}/a.arrow")
    assert list((stat_outputs([folder])[folder] or {})["files"]) == ["_metadata.json"]


def test_stat_survives_json(tmp_path: Path) -> None:
    """Else a record read back would never equal the file it was written for."""
    uri = put(str(tmp_path), "a.bin", b"1")
    stat = stat_outputs([uri])[uri]
    assert json.loads(json.dumps(stat)) == stat


def test_reading_a_chunk_is_cheap(tmp_path: Path) -> None:
    """Only the asked-for files are touched, however many shards there are."""
    ledger = Ledger(str(tmp_path))
    for n in range(50):
        ledger.write(record(f"k{n}"))
    for n in range(50, 60):
        (tmp_path / f"ledger/accounts/curated/k{n}.parquet").mkdir()  # reading one of these would raise
    assert sorted(ledger.records("curated", ["k3", "k7"])) == ["k3", "k7"]
