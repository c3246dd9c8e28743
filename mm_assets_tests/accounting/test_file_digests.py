"""What a shard's making leaves beside the data is known byte for byte, and told in a line when it is not as
it was written.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mm_assets.accounting import FILES, Balance, ShardRecord, account_table, digest_files, recorded_files
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.quarantine import QUARANTINE_SCHEMA, publish_quarantine
from mm_assets.filters.scores import SCORES_SCHEMA
from mm_assets.formats.parquet import UnreadableFile, publish_table
from mm_assets_tests.accounting.losses import BAD_JSON


@pytest.fixture(params=["local", "file url", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    remote = f"memory://digests-{uuid.uuid4().hex}"
    return {"local": str(tmp_path), "file url": f"file://{tmp_path}", "remote": remote}[request.param]


def replace_bytes(uri: str, change: Any) -> None:
    fs, path = fsspec.core.url_to_fs(uri)
    fs.pipe_file(path, change(fs.cat_file(path)))


SCORES, QUARANTINE, NONE = "scores/p.parquet", "quarantine/p.parquet", "quarantine/q.parquet"
ACCOUNT = "ledger/accounts/a/p.parquet"


def recorded(root: str, lost: bool = True) -> ShardRecord:
    """A shard's account, scores and quarantine, and a file that it does not have."""
    publish_table(f"{root}/{SCORES}", SCORES_SCHEMA.empty_table())
    row = {"partition": "p", "sample_id": "s", "kind": "bad_json", "message": "why", "raw": b"{"}
    records = QUARANTINE_SCHEMA.empty_table().from_pylist([row], schema=QUARANTINE_SCHEMA)
    publish_quarantine(f"{root}/{QUARANTINE}", records)
    files = digest_files(root, [f"{root}/{path}" for path in (SCORES, QUARANTINE, NONE)])
    account = account_table("a", "p", Balance(3, 2, {}, {"bad_json": 1}), [BAD_JSON] if lost else [])
    Ledger(root).write(ShardRecord("a", "p", "f", "v", "", account={FILES: files}), account)
    return Ledger(root).records("a", ["p"])["p"]


def test_untouched_files_have_no_problems(root: str) -> None:
    record = recorded(root)
    digests = recorded_files(record)
    assert {path: digest is None for path, digest in digests.items()} == {
        SCORES: False,
        QUARANTINE: False,
        NONE: True,
    }
    assert recorded_files(record, f"{root}/{SCORES}") == {SCORES: digests[SCORES]}
    assert Ledger(root).problems([record]) == {}


@pytest.mark.parametrize("path", [SCORES, QUARANTINE])
def test_every_change_of_a_file_is_one_line(root: str, path: str) -> None:
    record = recorded(root)
    size = recorded_files(record)[path]["bytes"]  # type: ignore[index]
    whole = fsspec.core.url_to_fs(f"{root}/{path}")[0].cat_file(f"{root}/{path}")

    def problems() -> dict[str, list[str]]:
        return Ledger(root).problems([record])

    for at in range(0, size, max(size // 50, 1)):
        replace_bytes(
            f"{root}/{path}", lambda _, at=at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        )
        assert problems() == {"p": [f"{path}: other bytes than were written"]}
    replace_bytes(f"{root}/{path}", lambda _: whole[:-1])
    assert problems() == {"p": [f"{path}: {size} bytes written, {size - 1} found"]}
    fs, name = fsspec.core.url_to_fs(f"{root}/{path}")
    fs.rm_file(name)
    other = replace(record, key="other", account={}, rows_digest="")
    assert Ledger(root).problems([record, other]) == {"p": [f"{path}: missing"]}


def test_a_file_where_there_was_none_is_told(root: str) -> None:
    record = recorded(root)
    publish_table(f"{root}/{NONE}", SCORES_SCHEMA.empty_table())
    assert Ledger(root).problems([record]) == {"p": [f"{NONE}: nothing was written, and yet there is a file"]}


def test_a_record_of_an_older_version_knows_of_no_files(root: str) -> None:
    record = ShardRecord("a", "p", "f", "v", "", account={"ledger": {"items": None, "balance": 5}})
    assert recorded_files(record) == {}
    assert Ledger(root).problems([record]) == {}


def test_lost_items_that_are_not_those_of_the_record_are_not_given_out(root: str) -> None:
    ledger, record = Ledger(root), recorded(root)
    assert ledger.recorded_items(record).equals(ledger.items("a", "p"))
    assert ledger.recorded_items(record).num_rows == 1
    whole = fsspec.core.url_to_fs(f"{root}/{ACCOUNT}")[0].cat_file(f"{root}/{ACCOUNT}")
    recorded(root, lost=False)
    with pytest.raises(UnreadableFile, match="^ledger/accounts/a/p.parquet: other rows than were written$"):
        ledger.recorded_items(record)
    replace_bytes(f"{root}/{ACCOUNT}", lambda _: whole[: len(whole) // 2])
    with pytest.raises(UnreadableFile, match="^ledger/accounts/a/p.parquet: damaged: "):
        ledger.recorded_items(record)
    fs, name = fsspec.core.url_to_fs(f"{root}/{ACCOUNT}")
    fs.rm_file(name)
    with pytest.raises(UnreadableFile, match="^ledger/accounts/a/p.parquet: missing$"):
        ledger.recorded_items(record)
