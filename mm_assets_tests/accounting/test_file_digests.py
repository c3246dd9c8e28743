"""What a shard's making leaves beside the data is known byte for byte, and told in a line when it is not as
it was written.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mm_assets.accounting.ledger import Balance, Ledger
from mm_assets.accounting.quarantine import QUARANTINE_SCHEMA, publish_quarantine
from mm_assets.accounting.record import (
    FILES,
    ShardRecord,
    digest_files,
    file_problems,
    recorded_files,
    shards_with_problems,
)
from mm_assets.filters.scores import SCORES_SCHEMA
from mm_assets.formats.parquet.files import UnreadableFile, publish_table
from mm_assets_tests.accounting.losses import BAD_JSON


@pytest.fixture(params=["local", "file url", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    remote = f"memory://digests-{uuid.uuid4().hex}"
    return {"local": str(tmp_path), "file url": f"file://{tmp_path}", "remote": remote}[request.param]


def replace_bytes(uri: str, change: Any) -> None:
    fs, path = fsspec.core.url_to_fs(uri)
    fs.pipe_file(path, change(fs.cat_file(path)))


def record_of(root: str, *uris: str, key: str = "p") -> ShardRecord:
    return ShardRecord("a", key, "f", "v", "", account={FILES: digest_files(root, uris)})


def outputs(root: str) -> list[str]:
    """The files of one shard: scores, quarantine, both files of the ledger, and one that it does not have."""
    scores, quarantine = f"{root}/scores/p.parquet", f"{root}/quarantine/p.parquet"
    publish_table(scores, SCORES_SCHEMA.empty_table())
    row = {"partition": "p", "sample_id": "s", "kind": "bad_json", "message": "why", "raw": b"{"}
    publish_quarantine(
        quarantine, QUARANTINE_SCHEMA.empty_table().from_pylist([row], schema=QUARANTINE_SCHEMA)
    )
    Ledger(root).write("curated_parquet", "p", (Balance(3, 2, {}, {"bad_json": 1}), [BAD_JSON]))
    Ledger(root).write("image_scores", "p", (Balance(2, 2, {}, {}), ()))
    return [
        scores,
        quarantine,
        *Ledger(root).uris("curated_parquet", "p"),
        Ledger(root).items_uri("image_scores", "p"),
    ]


PATHS = [
    "scores/p.parquet",
    "quarantine/p.parquet",
    "ledger/items/curated_parquet/p.parquet",
    "ledger/balance/curated_parquet/p.parquet",
    "ledger/items/image_scores/p.parquet",
]


def test_untouched_files_have_no_problems(root: str) -> None:
    record = record_of(root, *outputs(root))
    assert list(recorded_files(record)) == PATHS
    assert [digest is None for digest in recorded_files(record).values()] == [False] * 4 + [True]
    assert file_problems(root, recorded_files(record)) == []
    assert shards_with_problems(root, [record]) == {}


@pytest.mark.parametrize("path", PATHS[:4])
def test_every_change_of_a_file_is_one_line(root: str, path: str) -> None:
    record = record_of(root, *outputs(root))
    size = recorded_files(record)[path]["bytes"]  # type: ignore[index]
    whole = fsspec.core.url_to_fs(f"{root}/{path}")[0].cat_file(f"{root}/{path}")
    for at in range(0, size, max(size // 50, 1)):
        replace_bytes(
            f"{root}/{path}", lambda _, at=at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        )
        assert file_problems(root, recorded_files(record)) == [f"{path}: other bytes than were written"]
    replace_bytes(f"{root}/{path}", lambda _: whole[:-1])
    assert file_problems(root, recorded_files(record)) == [f"{path}: {size} bytes written, {size - 1} found"]
    assert (
        file_problems(root, recorded_files(record, *(f"{root}/{other}" for other in PATHS if other != path)))
        == []
    )
    fs, name = fsspec.core.url_to_fs(f"{root}/{path}")
    fs.rm_file(name)
    assert shards_with_problems(root, [record, record_of(root, key="other")]) == {"p": [f"{path}: missing"]}


def test_a_file_where_there_was_none_is_told(root: str) -> None:
    record = record_of(root, *outputs(root))
    Ledger(root).write("image_scores", "p", (Balance(2, 1, {}, {"bad_json": 1}), [BAD_JSON]))
    assert file_problems(root, recorded_files(record)) == [
        f"{PATHS[4]}: nothing was written, and yet there is a file"
    ]


def test_a_record_of_an_older_version_knows_of_no_files(root: str) -> None:
    record = ShardRecord("a", "p", "f", "v", "", account={"ledger": {"items": None, "balance": 5}})
    assert recorded_files(record) == {}
    assert shards_with_problems(root, [record]) == {}


def test_lost_items_that_are_not_those_of_the_record_are_not_given_out(root: str) -> None:
    ledger = Ledger(root)
    uris = outputs(root)
    record = record_of(root, *uris)
    assert ledger.recorded_items("curated_parquet", "p", record).equals(ledger.items("curated_parquet", "p"))
    assert ledger.recorded_items("curated_parquet", "p", None).num_rows == 1
    replace_bytes(uris[0], lambda data: data[:-1])  # no matter here
    assert ledger.recorded_items("curated_parquet", "p", record).num_rows == 1
    replace_bytes(uris[2], lambda data: data[: len(data) // 2])
    for known in (record, None):
        with pytest.raises(UnreadableFile, match="ledger/items/curated_parquet/p.parquet: "):
            ledger.recorded_items("curated_parquet", "p", known)
    fs, name = fsspec.core.url_to_fs(uris[2])
    fs.rm_file(name)
    with pytest.raises(UnreadableFile, match="ledger/items/curated_parquet/p.parquet: missing"):
        ledger.recorded_items("curated_parquet", "p", record)
