"""Accounts that were read whole are not read again while no stamp has changed; whatever has changed is."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import FILES, Balance, ShardRecord, account_table, digest_files
from mm_assets.accounting import accounts as accounts_module
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.quarantine import QUARANTINE_SCHEMA, publish_quarantine
from mm_assets.filters.scores import SCORES_SCHEMA
from mm_assets.formats.parquet import publish_table
from mm_assets.storage import small_files, stamps
from mm_assets_tests.accounting.losses import BAD_JSON

ASSET = "quarantine"
KEYS = ["train/a.b", *(f"shard-{number:02}" for number in range(9))]
ONE = KEYS[1]
ACCOUNT, SCORES = f"ledger/accounts/{ASSET}/{ONE}.parquet", f"scores/{ONE}.parquet"
QUARANTINE, ABSENT = f"quarantine/{ONE}.parquet", f"absent/{ONE}.parquet"
INDEX = f"ledger/index/accounts/{ASSET}"


@pytest.fixture(params=["own", "of others"])
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The storage of ten shards, each with scores, quarantine, and a file that it does not have.

    Who has written an account knows it by its bytes; who has not compares its rows.
    """
    folder = tmp_path / "storage"
    monkeypatch.setattr(accounts_module, "_written", set())
    for key in KEYS:
        write(folder, key)
    if request.param == "of others":
        monkeypatch.setattr(accounts_module, "_written", set())
    monkeypatch.setattr(stamps, "_SETTLED_NS", 0)
    return folder


def write(root: Path | str, key: str, version: str = "v") -> None:
    names = [f"{kind}/{key.replace('/', '-')}.parquet" for kind in ("scores", "quarantine", "absent")]
    publish_table(f"{root}/{names[0]}", SCORES_SCHEMA.empty_table())
    row = {"partition": key, "sample_id": "s", "kind": "bad_json", "message": version, "raw": b"{"}
    publish_quarantine(
        f"{root}/{names[1]}", QUARANTINE_SCHEMA.empty_table().from_pylist([row], QUARANTINE_SCHEMA)
    )
    files = digest_files(f"{root}/", [f"{root}/{name}" for name in names])
    rows = account_table(ASSET, key, Balance(3, 2, {}, {"bad_json": 1}), [BAD_JSON])
    record = ShardRecord(ASSET, key, "f", version, f"{root}/quarantine/{key}", account={FILES: files})
    Ledger(str(root)).write(record, rows)


def whole(root: Path | str, keys: list[str] = KEYS, **how: bool) -> dict[str, ShardRecord]:
    return Ledger(str(root)).whole_records(ASSET, keys, **how)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The accounts and small files that were read."""
    read, names = accounts_module.read_bytes, []

    def noted(uri: str, *options: object) -> bytes | None:
        names.append(uri.rpartition("storage/")[2])
        return read(uri, *options)

    monkeypatch.setattr(accounts_module, "read_bytes", noted)
    return names


def test_damaged_rows_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, ONE)
    path = tmp_path / ACCOUNT
    data = path.read_bytes()
    path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    assert whole(tmp_path, [ONE]) == {}
    assert f"account {path} is unreadable, the next run makes its shard again" in caplog.text


def in_place(path: Path, data: bytes) -> None:
    """Give a file other bytes, and the times of before, as tools do that restore them."""
    found = path.stat()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_what_records_have_alike_is_in_memory_once(root: Path) -> None:
    checks = [{"name": "c", "passed": True, "metadata": {"share": 0.0}}]
    settings: list[dict[str, object]] = [{"a": [1, 0.5]}, {"a": [1, 0.5]}, {"a": [1, 0]}, {"a": [True, 0.0]}]
    for key, of_key in zip(KEYS, settings, strict=False):
        account = {"settings": of_key, "inputs": {"raw": key}}
        Ledger(str(root)).write(ShardRecord(ASSET, key, "f", "v", "", account=account, checks=checks))
    first = whole(root)
    found = list(whole(root).values())[: len(settings)]
    assert [repr(record) for record in found] == [repr(first[key]) for key in KEYS[: len(settings)]]
    assert found[0].account["settings"] is found[1].account["settings"]
    assert found[0].checks[0] is found[3].checks[0]


def test_nothing_is_read_twice_and_the_records_are_the_same(root: Path, opened: list[str]) -> None:
    first = whole(root)
    assert first == Ledger(str(root)).records(ASSET, KEYS)
    assert len(opened) == 3 * len(KEYS)
    opened.clear()
    assert whole(root) == first
    assert whole(root, [*KEYS, "not there"]) == first
    assert opened == [f"ledger/accounts/{ASSET}/not there.parquet".replace(" ", "%20")]


def _flip(path: str) -> Callable[[Path], None]:
    def flip(root: Path) -> None:
        data = (root / path).read_bytes()
        in_place(root / path, flipped(data, len(data) // 2))

    return flip


def _remove(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).unlink()


def _cut(path: str) -> Callable[[Path], None]:
    return lambda root: in_place(root / path, (root / path).read_bytes()[:-1])


def _fifo(path: str) -> Callable[[Path], None]:
    def replace(root: Path) -> None:
        (root / path).unlink()
        os.mkfifo(root / path)

    return replace


def _appear(root: Path) -> None:
    (root / "absent").mkdir(exist_ok=True)
    (root / ABSENT).write_bytes(b"not expected")


def _another(root: Path) -> None:
    """The account of another shard."""
    shutil.copy(root / f"ledger/accounts/{ASSET}/{KEYS[2]}.parquet", root / ACCOUNT)


def _other_rows(root: Path) -> None:
    """An account whose record is as it was, and its rows are not."""
    path = root / ACCOUNT
    table = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata
    pq.write_table(table.slice(1).replace_schema_metadata(metadata), path)


CHANGES: dict[str, Callable[[Path], None]] = {
    **{f"flip {path}": _flip(path) for path in (ACCOUNT, SCORES, QUARANTINE)},
    **{f"cut {path}": _cut(path) for path in (ACCOUNT, SCORES, QUARANTINE)},
    **{f"remove {path}": _remove(path) for path in (ACCOUNT, SCORES, QUARANTINE)},
    **{f"fifo {path}": _fifo(path) for path in (SCORES, QUARANTINE)},
    "appear": _appear,
    "another": _another,
    "other rows": _other_rows,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_not_as_it_was_written_is_found_after_a_look(
    root: Path, change: Callable[[Path], None], opened: list[str]
) -> None:
    before = whole(root)
    opened.clear()
    change(root)
    others = {key: record for key, record in before.items() if key != ONE}
    assert whole(root) == others
    assert all(ONE in name for name in opened)  # one changed shard costs that shard alone
    assert whole(root) == others  # nor is what is damaged kept as whole
    for path in (SCORES, QUARANTINE, ABSENT):
        (root / path).unlink(missing_ok=True)
    write(root, ONE)
    assert whole(root) == before


def read_apart(root: Path) -> dict[str, ShardRecord]:
    """The records that have no problems, each file read by itself."""
    ledger = Ledger(str(root))
    records = ledger.records(ASSET, KEYS)
    problems = ledger.problems(records.values())
    return {key: record for key, record in records.items() if key not in problems}


def test_every_byte_of_an_account_counts(root: Path) -> None:
    assert whole(root) == read_apart(root)
    data = (root / ACCOUNT).read_bytes()
    for at in range(0, len(data), 29):
        in_place(root / ACCOUNT, flipped(data, at))
        assert whole(root) == read_apart(root), at


def test_a_later_version_is_read(root: Path) -> None:
    whole(root)
    write(root, ONE, "later")
    found = whole(root)
    assert {key: record.version for key, record in found.items()} == {
        key: "later" if key == ONE else "v" for key in KEYS
    }


def test_what_was_changed_just_now_is_read_again(
    root: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change in the same tick of the file system's clock would leave its times as they are."""
    monkeypatch.setattr(stamps, "_SETTLED_NS", 3_600_000_000_000)
    assert whole(root) == whole(root)
    assert len(opened) == 6 * len(KEYS)
    assert not any((root / INDEX).glob("*"))
    monkeypatch.setattr(stamps, "_SETTLED_NS", 0)
    ahead = time.time() + 3600  # a clock that was ahead
    os.utime(root / SCORES, (ahead, ahead))
    whole(root)
    opened.clear()
    assert len(whole(root)) == len(KEYS)
    assert sorted(opened) == sorted([ACCOUNT, QUARANTINE, SCORES])


def test_a_storage_that_was_moved_or_copied(root: Path, opened: list[str]) -> None:
    whole(root)
    opened.clear()
    copied = root.with_name("another-storage")
    shutil.copytree(root, copied)
    _flip(SCORES)(copied)
    found = whole(copied)
    assert found.keys() == {*KEYS} - {ONE}
    assert {record.uri for record in found.values()} == {f"{copied}/quarantine/{key}" for key in found}
    assert len(opened) == 3 * len(KEYS)
    opened.clear()
    moved = root.with_name("a-third-storage")
    copied.rename(moved)
    assert {record.uri for record in whole(moved).values()} == {f"{moved}/quarantine/{key}" for key in found}
    assert all(ONE in name for name in opened)


def test_an_index_of_another_storage_is_not_believed(root: Path) -> None:
    """It has other stamps, even where all else is equal."""
    whole(root)
    other = root.with_name("other")
    for key in KEYS:
        write(other, key, "w")
    shutil.copytree(root / INDEX, other / INDEX)
    assert {record.version for record in whole(other).values()} == {"w"}


@pytest.mark.parametrize("damage", [b"", b"PAR1", None], ids=["empty", "torn", "flipped"])
def test_a_damaged_index_only_costs_time(root: Path, opened: list[str], damage: bytes | None) -> None:
    before = whole(root)
    (segment,) = (root / INDEX).iterdir()
    data = segment.read_bytes()
    segment.write_bytes(flipped(data, len(data) // 2) if damage is None else damage)
    opened.clear()
    assert whole(root) == before
    assert len(opened) == 3 * len(KEYS)
    opened.clear()
    assert whole(root) == before
    assert opened == []


def test_another_release_reads_for_itself(
    root: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(root)
    opened.clear()
    monkeypatch.setattr(accounts_module, "FORMAT", accounts_module.FORMAT + 1)
    assert whole(root) == {}
    assert len(opened) == len(KEYS)


def test_a_look_that_is_to_change_nothing_keeps_nothing(root: Path) -> None:
    whole(root, keeps=False)
    assert not (root / INDEX).exists()


def test_a_ledger_that_cannot_be_written_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole(root, keeps=False)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(root))

    monkeypatch.setattr(small_files, "publish_bytes", refused)
    assert whole(root) == expected
    assert not (root / INDEX).exists()


def test_a_process_that_was_killed_while_it_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments then say the same, or none of them is there."""
    before = whole(root)
    write(root, ONE, "later")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("remove", "publish_bytes"):
        with monkeypatch.context() as patched:
            patched.setattr(small_files, step, killed)
            with suppress(KeyboardInterrupt):
                whole(root)
        found = whole(root)
        assert found == before | {ONE: found[ONE]}
        assert found[ONE].version == "later"


def test_two_at_once(root: Path) -> None:
    expected = whole(root, keeps=False)
    ready = threading.Barrier(4)

    def look(_: int) -> list[dict[str, ShardRecord]]:
        ready.wait()
        return [whole(root) for _ in range(5)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(look, range(4)))
    assert all(records == expected for each in found for records in each)
    assert whole(root) == expected


def test_few_shards_of_many_are_read_without_the_index(root: Path, opened: list[str]) -> None:
    whole(root)
    opened.clear()
    assert whole(root, [ONE]).keys() == {ONE}
    assert sorted(opened) == sorted([ACCOUNT, QUARANTINE, SCORES])
