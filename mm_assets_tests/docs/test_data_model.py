"""The page of the data model has every table and column that there really is, with its type."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.quarantine import QUARANTINE_SCHEMA
from mm_assets.accounting.retirement import Retirement
from mm_assets.interleaved import INTERLEAVED_SCHEMA, RESERVED_COLUMNS
from mm_assets.storage.small_files import SCHEMA as INDEX_SCHEMA
from mm_assets.versions import SAMPLES_SCHEMA
from mm_assets.versions.tagging import STATES_SCHEMA
from mm_assets_tests.cli import commands
from mm_assets_tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "data_model.md").read_text()
Columns = dict[str, str]  # name to type


def tables(heading: str) -> list[Columns]:
    """The tables of a section that list columns or keys with their types, in their order."""
    (section,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found: list[Columns] = []
    for line in section.splitlines():
        if re.match(r"\| (column|key)( of `\w+`)? \| type \|", line):
            found.append({})
        elif row := re.match(r"\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", line):  # one name, or several of a type
            found[-1].update(dict.fromkeys(re.findall(r"\w+", row[1]), row[2].strip()))
    return found


def columns(schema: pa.Schema) -> Columns:
    return {field.name: f"{field.type}{'' if field.nullable else ', not null'}" for field in schema}


def keys(value: dict[str, Any]) -> Columns:
    kinds = {str: "string", int: "number", float: "number", bool: "bool", list: "list", dict: "object"}
    return {name: kinds[type(entry)] for name, entry in value.items()}


def some(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


@pytest.fixture(scope="module")
def storage(demo: Path) -> Path:
    return demo / "demo" / "storage"


def test_items() -> None:
    (documented,) = tables("Items")
    assert list(documented.items()) == list(columns(INTERLEAVED_SCHEMA).items())


@pytest.mark.parametrize(
    ("heading", "at", "pattern"),
    [
        ("Image scores", 0, "scores/*.parquet"),
        ("Sample scores", 0, "sample_scores/*.parquet"),
        ("Accounts", 0, "ledger/accounts/*/*.parquet"),
        ("Proofs", 0, "proof/*/*.parquet"),
        ("Surveys of raw shards", 0, "ledger/raw_shards/*.parquet"),
        ("Surveys of raw shards", 2, "ledger/index/surveys/*.parquet"),
        ("Surveys of raw shards", 2, "ledger/index/published/*.parquet"),
        ("Surveys of raw shards", 2, "ledger/index/tars/*.parquet"),
    ],
)
def test_tables_of_a_run(heading: str, at: int, pattern: str, storage: Path) -> None:
    assert tables(heading)[at] == columns(pq.read_schema(some(storage, pattern)))


def recorded(storage: Path, asset: str) -> dict[str, Any]:
    file = pq.read_metadata(some(storage, f"ledger/accounts/{asset}/*.parquet"))
    record: dict[str, Any] = json.loads(file.metadata[b"mm_assets:record"])
    return record


def test_quarantine() -> None:
    (documented,) = tables("Quarantine")
    assert documented == columns(QUARANTINE_SCHEMA)


@pytest.mark.parametrize("folder", ["curated", "filtered"])
def test_reserved_columns_of_a_run_come_first(folder: str, storage: Path) -> None:
    (documented,) = tables("Items")
    for file in (storage / folder).glob("*.parquet"):
        schema = pq.read_schema(file)
        assert schema.names[:8] == list(RESERVED_COLUMNS)
        assert {name: kind for name, kind in columns(schema).items() if name in documented} == documented


def test_the_lance_table_has_the_columns_of_all_shards(storage: Path) -> None:
    schema = lance.dataset(str(storage / "lance" / "items.lance")).schema
    shards = [columns(pq.read_schema(file)) for file in (storage / "filtered").glob("*.parquet")]
    assert columns(schema) == {name: kind for shard in shards for name, kind in shard.items()}
    assert list(columns(schema))[:8] == list(tables("Items")[0])


def test_the_locator(storage: Path) -> None:
    (documented,) = tables("The locator `source_ref`")
    refs = pq.read_table(some(storage, "curated/pdf-*.parquet")).column("source_ref").to_pylist()
    assert max((keys(json.loads(ref)) for ref in refs), key=len) == documented


def test_the_arrow_cache(storage: Path) -> None:
    (documented,) = tables("The Arrow cache")
    assert keys(json.loads(some(storage, "arrow_cache/*/_metadata.json").read_text())) == documented


def test_the_json_of_the_tars(storage: Path) -> None:
    (documented,) = tables("The tars")
    with tarfile.open(some(storage, "webdataset/*.tar")) as tar:
        document = json.load(tar.extractfile(next(m for m in tar if m.name.endswith(".json"))))  # type: ignore[arg-type]
    assert keys(document) == documented


@pytest.mark.parametrize(
    "asset", ["curated_parquet", "filtered_parquet", "final_tars", "lance_table", "arrow_cache"]
)
def test_records(asset: str, storage: Path) -> None:
    _, documented, account = tables("Accounts")
    record = recorded(storage, asset)
    assert keys(record) == documented
    published = {"published": "string"} if asset == "curated_parquet" else {}
    assert keys(record["account"]) == account | published


@pytest.mark.parametrize("asset", ["image_scores", "sample_scores", "quarantine"])
def test_records_of_what_has_no_rows(asset: str, storage: Path) -> None:
    _, _, account = tables("Accounts")
    record = recorded(storage, asset)
    assert keys(record["account"]) == {**dict(list(account.items())[:3]), "files": "object"}


def test_the_rest_of_a_survey(storage: Path) -> None:
    _, rest, index = tables("Surveys of raw shards")
    assert index == columns(INDEX_SCHEMA)
    sealed = json.loads(
        pq.read_metadata(some(storage, "ledger/raw_shards/*.parquet")).metadata[b"mm_assets:survey"]
    )
    assert set(sealed) == {"content", "seal"}
    assert keys(json.loads(sealed["content"])) == rest
    published = json.loads(recorded(storage, "curated_parquet")["account"]["published"])
    assert set(published) == {"schema", "tallies", "declared", "declared_ints"}


def test_proofs(storage: Path) -> None:
    _, of_shard, summary, of_asset = tables("Proofs")
    sealed = pq.read_table(some(storage, "proof/*/*.parquet"))["proof"][0].as_py()
    assert keys(json.loads(sealed)) == of_shard
    proof = json.loads((storage / "proof" / "proof.json").read_text())
    assert keys(proof) == summary
    assert all(keys(total) == of_asset for total in proof["assets"].values())


def test_tags(storage: Path, tmp_path: Path) -> None:
    states, header, samples = tables("Tags")
    assert columns(STATES_SCHEMA) == states
    assert columns(SAMPLES_SCHEMA) == samples
    copy = Path(shutil.copytree(storage, tmp_path / "storage"))
    assert commands.ok("tag", "v1", "--storage", copy)
    assert keys(json.loads((copy / "versions" / "v1.json").read_text())) == header


def test_retired_shards(storage: Path, tmp_path: Path) -> None:
    (documented,) = tables("Retired shards")
    copy = Path(shutil.copytree(storage, tmp_path / "storage"))
    list(Retirement(str(copy)).run(["web-00000"]))
    note = json.loads((copy / "ledger" / "retired" / "web-00000.json").read_text())
    assert set(note) == {"format", "partition", "retirements", "seal"}
    (entry,) = note["retirements"]
    assert keys(entry) == documented


def test_published_files(storage: Path, tmp_path: Path) -> None:
    (documented,) = tables("Published files")
    copy = Path(shutil.copytree(storage, tmp_path / "storage"))
    commands.ok("publish", tmp_path / "there", "--storage", copy)
    (path,) = (copy / "ledger" / "published").iterdir()
    record = json.loads(path.read_text())
    assert keys(record) == documented | {"format": "number", "mm_assets": "string", "seal": "string"}
    assert set(record["files"][0]) == {"path", "bytes", "digests", "stamp", "mark"}


def test_file_metadata(storage: Path) -> None:
    for file in (storage / "curated").glob("*.parquet"):
        metadata = pq.read_schema(file).metadata
        assert metadata[b"mm_assets:schema_version"] == b"1"
        assert metadata[b"mm_assets:shard"].decode() == file.stem


def test_every_folder_of_a_run_is_on_the_page(storage: Path) -> None:
    for folder in storage.iterdir():
        assert f"| `{folder.name}/" in PAGE, folder.name
