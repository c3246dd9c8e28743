"""What landed shards were made with is not in their accounts: their outputs keep their ids and types."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.accounting import ShardRecord
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.contract import SchemaContract
from mm_assets.accounting.survey import RequiredType
from mm_assets.accounting.survey_store import SurveyIndex, SurveyStore
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.json_codec import json_field
from mm_assets_tests.accounting.stores import claimed_ids, store_of
from mm_assets_tests.formats.datasets import item, table_of, write

FIELDS = [
    pa.field("n", pa.int64()),
    pa.field("big", pa.int64()),
    pa.field("score", pa.float64()),
    json_field("tags"),
]


def land(root: Path, partition: str, ids: str) -> None:
    """A curated shard and its record; each letter is a sample of two rows."""
    rows = [
        row
        for i in ids
        for row in (item(i, n=1, big=2**53 + 1, score=0.5, tags="[]"), item(i, 0, text_content="t"))
    ]
    write("parquet", root / "curated", InterleavedBatch(table_of(rows, FIELDS), (), partition))
    uri = f"{root}/curated/{partition}.parquet"
    Ledger(str(root)).write(ShardRecord("curated_parquet", partition, "", "v1", uri))


def test_a_landed_shard_keeps_its_ids_without_a_survey(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"a": "xy", "z": "yz"})
    land(tmp_path, "z", "yz")
    (tmp_path / "ledger/raw_shards/z.parquet").unlink()
    assert claimed_ids(store, ["a"], ["z"], ["a", "z"]) == {"a": {"y": "z"}}


@pytest.mark.parametrize("damage", ["missing", "torn", "no output"])
def test_an_output_that_tells_nothing_keeps_nothing(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(tmp_path, {"a": "x"})
    land(tmp_path, "z", "x")
    file = tmp_path / "curated" / "z.parquet"
    if damage == "torn":
        file.write_bytes(b"torn")
    elif damage == "missing":
        file.unlink()
    else:
        Ledger(str(tmp_path)).write(ShardRecord("curated_parquet", "z", "", "v1", ""))
    assert claimed_ids(store, ["a"], ["z"], ["a", "z"]) == {"a": {}}
    assert ("z.parquet tells nothing of shard 'z'" in caplog.text) is (damage != "no output")


def test_the_contract_holds_with_the_output_alone(tmp_path: Path) -> None:
    land(tmp_path, "z", "yz")
    published = SurveyIndex(SurveyStore(str(tmp_path))).published(["z", "unknown"])
    assert list(published) == ["z"]
    assert published["z"].schema.equals(pa.schema(FIELDS), check_metadata=True)
    contract = SchemaContract.derive({}, published)
    assert {name: column.required_type.field for name, column in contract.columns.items()} == {
        field.name: field for field in FIELDS
    }
    number = RequiredType(pa.field("n", pa.float64()))
    assert contract.columns["n"].required_type.join(number).field.type == pa.float64()
    assert contract.columns["big"].required_type.clashes(number)  # no float holds 2^53 + 1
