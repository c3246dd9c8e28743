"""Small files in a bucket that one process reads once while their etags stay, and anew when they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_assets.accounting import ShardRecord, account_table, accounts
from mm_assets.accounting.accounts import Ledger
from mm_assets.formats.webdataset.client_files import declares
from mm_assets.formats.webdataset.writer import TarFolder
from mm_assets_tests.accounting.test_known_files import ASSET, KEYS, write
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.formats.webdataset.test_tar_folder import Staged
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.warm_workers import warm_workers
from tools.demo import make_shards

pytestmark = pytest.mark.clients

SHARDS = 5


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    return s3.new_bucket()


def noted(of: Any, name: str, monkeypatch: pytest.MonkeyPatch, read: Counter[str]) -> None:
    """Count the locations that a function is asked for, its first argument of text."""
    found: Callable[..., Any] = getattr(of, name)

    def counted(*arguments: Any) -> Any:
        read[next(one for one in arguments if isinstance(one, str))] += 1
        return found(*arguments)

    monkeypatch.setattr(of, name, counted)


def with_other_byte(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_proof_reads_each_account_once_and_finds_other_rows(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    make_shards(raw, members=SHARDS, pdf=0, samples=1)
    settings = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": f"s3://{bucket}/out", "MM_WORKERS": "1"}
    settings |= {**s3.env, "DAGSTER_HOME": str(tmp_path / "home")}
    with warm_workers(apart=True):
        fine(run("run", **settings))
        accounts._records._kept.clear()  # as in a new process
        read: Counter[str] = Counter()
        for name in ("read_bytes", "read_end", "small_object"):
            noted(accounts, name, monkeypatch, read)
        fine(run("prove", **settings))
        store = s3.filesystem()
        made = {f"s3://{name}" for name in store.find(f"{bucket}/out/ledger/accounts")}
        assert len(made) == 8 * SHARDS
        assert {name: read[name] for name in made} == dict.fromkeys(made, 1)
        damaged = f"{bucket}/out/ledger/accounts/final_tars/web-00001.parquet"
        data = store.cat_file(damaged)
        store.pipe_file(damaged, with_other_byte(data, 20))  # of the rows, not of the record
        found = run("prove", **settings)
        assert found.returncode == 1
        assert "ledger/accounts/final_tars/web-00001.parquet" in found.stdout + found.stderr
        store.pipe_file(damaged, data)
        fine(run("prove", **settings))


def test_rows_that_change_after_they_were_read_are_read_again(s3: S3Server, bucket: str) -> None:
    root = f"s3://{bucket}/storage"
    for key in KEYS:
        write(root, key)
    ledger, (one, other, *_) = Ledger(root), KEYS
    accounts._records._kept.clear()
    records = ledger.records(ASSET, KEYS, with_rows=True)
    assert records.keys() == set(KEYS)
    assert ledger.problems(records.values()) == {}
    store, path = s3.filesystem(), ledger.uri(ASSET, other).removeprefix("s3://")
    store.pipe_file(path, with_other_byte(store.cat_file(path), 20))
    assert list(ledger.problems(records.values())) == [other]
    store.rm_file(ledger.uri(ASSET, one).removeprefix("s3://"))
    assert set(ledger.problems(records.values())) == {one, other}


def test_rows_that_another_writer_has_replaced_are_not_those_of_an_older_record(bucket: str) -> None:
    root = f"s3://{bucket}/storage"
    for key in KEYS:
        write(root, key)
    ledger, one = Ledger(root), KEYS[1]
    records = ledger.records(ASSET, KEYS, with_rows=True)
    ledger.write(records[one], account_table(ASSET, one))
    assert ledger.records(ASSET, KEYS, with_rows=True)[one] != records[one]
    (line,) = ledger.problems(records.values())[one]
    assert line == f"ledger/accounts/{ASSET}/{one}.parquet: other rows than were written"


class Held(bytes):
    """Bytes that are counted while somebody holds them."""

    now = most = 0

    def __init__(self, data: bytes) -> None:
        Held.now += 1
        Held.most = max(Held.most, Held.now)

    def __del__(self) -> None:
        Held.now -= 1


def test_accounts_are_let_go_one_by_one(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root, keys = f"s3://{bucket}/storage", [f"shard-{number:02}" for number in range(60)]
    for key in keys:
        Ledger(root).write(ShardRecord(ASSET, key, "f", "v", ""), account_table(ASSET, key))
    accounts._records._kept.clear()
    read = accounts.read_bytes
    monkeypatch.setattr(accounts, "read_bytes", lambda uri: Held(read(uri) or b""))
    assert len(Ledger(root).records(ASSET, keys, with_rows=True)) == 60
    assert 0 < Held.most <= 20  # 16 threads read
    assert Held.now == 0


def test_a_card_is_made_of_statistics_that_are_read_once(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, read = f"s3://{bucket}/tars", Counter[str]()
    noted(TarFolder, "_read", monkeypatch, read)
    for number in range(6):
        Staged(tmp_path, f"{number}.tar", 1, [f"{number}.jpg"], {}).publish(TarFolder(root))
    finals = {name: times for name, times in read.items() if name.endswith(".tar.json")}
    # Each publisher asks whether its tar was there before; then it is read for the first card that needs it.
    assert finals == {f".mm_assets/{number}.tar.json": 1 + (number < 5) for number in range(6)}
    changed = Staged(tmp_path, "0.tar", 1, ["7.png"], {"score": "float64"})  # as another process publishes it
    s3.filesystem().pipe_file(f"{bucket}/tars/.mm_assets/0.tar.json", changed.stats.to_json().encode())
    last = Staged(tmp_path, "6.tar", 1, ["6.jpg"], {})
    last.publish(TarFolder(root))
    card = s3.filesystem().cat_file(f"{bucket}/tars/README.md").decode()
    assert declares(card, changed.stats)
    assert declares(card, last.stats)
