"""A storage of an earlier release: nothing is made again, all is found in it, and accounts are made of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import BY_ASSET
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.earlier_ledger import EarlierLedger
from mm_assets.formats.parquet import UnreadableFile
from mm_assets_tests.accounting.earlier_layout import make_earlier
from mm_assets_tests.graph.commands import ok, run
from mm_assets_tests.graph.deployment import Deployment, materialized, prove, write_tar
from mm_assets_tests.graph.published import account, lost_items, record_in
from mm_assets_tests.graph.samples import PNG, samples
from mm_assets_tests.quick_instance import quick_instance

LONG = "long" * 30  # the file names of its accounts are digests


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two shards, one with items that are filtered and one that is quarantined."""
    folder = tmp_path_factory.mktemp("made")
    write_tar(folder / "raw" / "a.tar", {**samples(3), "bad.json": b"{nope", "stray.png": PNG})
    write_tar(folder / "raw" / f"{LONG}.tar", samples(2, "g"))
    environment = {"MM_WORKERS": "1", "MM_MIN_ASPECT_RATIO": "50", "MM_MAX_ASPECT_RATIO": "60"}
    with quick_instance(tmp_path_factory.mktemp("home")) as instance:
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, environment)
        assert deployment.run().success
        yield deployment


def accounts(storage: str) -> list[Path]:
    return sorted(Path(storage, "ledger", "accounts").glob("*/*"))


def earlier_files(storage: str) -> list[Path]:
    ledger = Path(storage, "ledger")
    patterns = ("balance/*/*", "items/*/*", "sample_ids/*", "raw_shards/*.json", "[!r]*/*.json")
    return [path for pattern in patterns for path in ledger.glob(pattern)]


def test_nothing_is_made_again_and_accounts_are_made(copied: Deployment) -> None:
    storage = copied.storage
    before = {path: (pq.read_table(path), record_in(path)) for path in accounts(storage)}
    make_earlier(storage)
    index = Path(storage, "ledger", "index", "sample_ids")
    index.mkdir(parents=True)
    (index / "a.parquet").write_bytes(b"of an earlier release")
    assert len(earlier_files(storage)) == 35
    result = copied.run()
    assert result.success
    assert all(
        made.metadata["unchanged"].value for of in materialized(result).values() for made in of.values()
    )
    assert accounts(storage) == sorted(before)
    for path, (rows, record) in before.items():
        assert pq.read_table(path).equals(rows), path
        assert record_in(path) == record, path
    assert earlier_files(storage) == []
    assert not Path(storage, "ledger", "balance").exists()
    assert list(index.iterdir()) == []
    assert prove(copied)[:2] == (True, {})


def test_it_is_read_as_it_is(copied: Deployment) -> None:
    """By commands that change nothing."""
    storage = copied.storage
    words = [("explain", "s000"), ("show", "s000"), ("explain", "bad"), ("preview",), ("tag", "one")]
    expected = [ok(copied, *some) for some in words]
    items = lost_items(storage, "curated_parquet")
    make_earlier(storage)
    assert [ok(copied, *some) for some in words[:-1]] == expected[:-1]
    assert Ledger(storage).items("curated_parquet", "a").to_pylist() == items
    assert sorted(Ledger(storage).named("curated_parquet")) == ["a", LONG]
    assert "no difference" in ok(copied, "diff", "one")
    ok(copied, "tag", "two")
    assert prove(copied)[:2] == (True, {})
    assert accounts(storage) == []


def test_what_another_process_makes_an_account_of_is_found(
    copied: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before it is looked for among what earlier releases have left."""
    make_earlier(copied.storage)
    records, named, items = EarlierLedger.records, EarlierLedger.named, EarlierLedger.items
    asset = "filtered_parquet"

    def upgrade() -> None:
        monkeypatch.undo()
        ledger = Ledger(copied.storage)
        for record in ledger.records(asset, ["a", LONG]).values():
            ledger.upgrade(record)

    def late(find: Callable[..., Any]) -> Callable[..., Any]:
        def found(*arguments: Any) -> Any:
            upgrade()
            return find(*arguments)

        return found

    for name, find in (("records", records), ("named", named), ("items", items)):
        ledger = Ledger(copied.storage)
        monkeypatch.setattr(EarlierLedger, name, late(find))
        ask = {
            "records": lambda ledger=ledger: sorted(ledger.records(asset, ["a", LONG])),
            "named": lambda ledger=ledger: sorted(ledger.named(asset)),
            "items": lambda ledger=ledger: ledger.items(asset, "a").num_rows,
        }[name]
        assert ask() == (3 if name == "items" else ["a", LONG]), name
        make_earlier(copied.storage)


def test_records_without_a_balance_stay_found_when_all_others_are_accounts(copied: Deployment) -> None:
    make_earlier(copied.storage)
    ledger = Ledger(copied.storage)
    for asset in (*BY_ASSET, "image_scores"):
        for record in ledger.records(asset, ["a", LONG]).values():
            ledger.upgrade(record)
    for asset in ("quarantine", "sample_scores"):
        assert sorted(Ledger(copied.storage).records(asset, ["a", LONG])) == ["a", LONG]
    assert all(
        made.metadata["unchanged"].value for of in materialized(copied.run()).values() for made in of.values()
    )
    assert earlier_files(copied.storage) == []


@pytest.mark.parametrize("folder", ["balance", "items"])
def test_an_upgrade_loses_no_item_of_files_that_are_gone(copied: Deployment, folder: str) -> None:
    """Also of records that do not have the digests of the files."""
    make_earlier(copied.storage)
    Path(copied.storage, "ledger", folder, "filtered_parquet", "a.parquet").unlink()
    ledger = Ledger(copied.storage)
    record = ledger.records("filtered_parquet", ["a"])["a"]
    with pytest.raises(UnreadableFile, match="of filtered_parquet, shard 'a'"):
        ledger.upgrade(record)
    assert Ledger(copied.storage).records("filtered_parquet", ["a"])["a"].is_earlier


def test_a_torn_account_of_another_shard_hides_no_sample(
    copied: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    expected = ok(copied, "explain", "s000")
    path = Path(Ledger(copied.storage).uri("filtered_parquet", LONG))
    data = path.read_bytes()
    for torn in (b"", data[: len(data) // 2], data[:200] + b"?" + data[201:]):
        path.write_bytes(torn)
        assert run(copied, "explain", "s000").stdout == expected
    assert path.name in caplog.text


def test_what_a_killed_upgrade_left_counts_no_item_twice(copied: Deployment, tmp_path: Path) -> None:
    expected = ok(copied, "explain", "s000")
    accounts_folder = Path(copied.storage, "ledger", "accounts")
    shutil.copytree(accounts_folder, tmp_path / "kept")
    make_earlier(copied.storage)
    shutil.copytree(tmp_path / "kept", accounts_folder)
    assert ok(copied, "explain", "s000") == expected


@pytest.mark.parametrize("folder", ["balance", "items"])
def test_damage_is_found_and_costs_one_making(copied: Deployment, folder: str) -> None:
    make_earlier(copied.storage)
    path = Path(copied.storage, "ledger", folder, "filtered_parquet", "a.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    success, found, _ = prove(copied)
    assert (success, list(found)) == (False, ["filtered_parquet"])
    assert found["filtered_parquet"]["a"][0].startswith(f"ledger/{folder}/filtered_parquet/a.parquet: ")
    result = copied.run()
    assert result.success
    unchanged = materialized(result)["filtered_parquet"]
    assert {key: "unchanged" in made.metadata for key, made in unchanged.items()} == {"a": False, LONG: True}
    assert earlier_files(copied.storage) == []
    assert account(copied.storage, "filtered_parquet", "a").exists()
    assert prove(copied)[:2] == (True, {})
