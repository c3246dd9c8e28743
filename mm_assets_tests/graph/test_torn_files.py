"""A damaged file of the accounting, whichever it is, costs a shard one more making: it is named, and is as
before after the next run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets_tests.graph.deployment import CURATED, FILTERED, Deployment, materialized, write_tar
from mm_assets_tests.graph.published import account, lost_items
from mm_assets_tests.graph.samples import PNG, samples
from mm_assets_tests.quick_instance import quick_instance

Change = Callable[[bytes], bytes]

DAMAGE: dict[str, Change] = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
}
SURVEYS = "ledger/raw_shards/?.parquet"
FOLDERS = ("ledger/raw_shards", "scores", "sample_scores", "quarantine")
MAKE_THEM = [*FILTERED, "quarantine"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A shard of which every file of the accounting exists, and one without losses."""
    folder = tmp_path_factory.mktemp("made")
    write_tar(folder / "raw" / "a.tar", {**samples(3), "bad.json": b"{nope", "stray.png": PNG})
    write_tar(folder / "raw" / "b.tar", samples(2, "g"))
    environment = {"MM_WORKERS": "2", "MM_MIN_ASPECT_RATIO": "50", "MM_MAX_ASPECT_RATIO": "60"}
    with quick_instance(folder / "home") as instance:
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, environment)
        assert deployment.run().success
        yield deployment


def files(storage: Path, *folders: str) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for folder in folders
        for path in sorted((storage / folder).rglob("*"))
        if path.is_file()
    }


def damage(path: Path, change: Change) -> None:
    """Change the content, and nothing that is seen from outside but the size."""
    before = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def told(deployment: Deployment, run: dg.ExecuteInProcessResult, caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(
        [caplog.text, *(entry.user_message for entry in deployment.instance.all_logs(run.run_id))]
    )


@pytest.mark.parametrize("change", DAMAGE)
def test_files_beside_the_data(
    tmp_path: Path, copied: Deployment, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "storage"
    before = files(storage, *FOLDERS)
    assert {path.relative_to(storage).parts[0] for path in before} == {
        "ledger",
        "scores",
        "sample_scores",
        "quarantine",
    }
    for path in before:
        damage(path, DAMAGE[change])
    result = copied.run(assets=MAKE_THEM)
    assert result.success
    assert all(set(shards) == {"a", "b"} for shards in materialized(result).values())
    # A flipped byte of a survey may be one that nobody reads.
    surveys = [path for path in storage.glob(SURVEYS) if change == "flipped"]
    assert [
        path
        for path, data in files(storage, *FOLDERS).items()
        if path not in surveys and data != before[path]
    ] == []
    text = told(copied, result, caplog)
    assert [
        path for path in before if path not in surveys and str(path.relative_to(storage)) not in text
    ] == []
    again = copied.run(assets=MAKE_THEM)
    assert all(
        event.metadata["unchanged"].value
        for shards in materialized(again).values()
        for event in shards.values()
    )


@pytest.mark.parametrize("change", DAMAGE)
def test_accounts(tmp_path: Path, copied: Deployment, change: str, caplog: pytest.LogCaptureFixture) -> None:
    storage = tmp_path / "storage"
    accounts = sorted((storage / "ledger" / "accounts").glob("*/*.parquet"))
    assert len(accounts) == 16
    before = files(storage, *FOLDERS)
    rows = {path: pq.read_table(path) for path in accounts}
    for path in accounts:
        damage(path, DAMAGE[change])
    result = copied.run()
    assert result.success
    assert files(storage, *FOLDERS) == before
    assert [path for path in accounts if not pq.read_table(path).equals(rows[path])] == []
    text = told(copied, result, caplog)
    assert [path for path in accounts if str(path.relative_to(storage)) not in text] == []


def test_a_cut_quarantine_does_not_block_its_shard(
    tmp_path: Path, copied: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "storage" / "quarantine" / "a.parquet"
    records = pq.read_table(path)
    path.write_bytes(path.read_bytes()[:100])
    result = copied.run(assets=["quarantine"])
    assert result.success
    assert pq.read_table(path).equals(records)
    assert "quarantine/a.parquet" in told(copied, result, caplog)


def test_quarantine_made_alone_closes_no_record_for_a_damaged_ledger(
    tmp_path: Path, copied: Deployment
) -> None:
    """What was lost is not known then: its shard fails, alone, and the published records stay."""
    storage = tmp_path / "storage"
    before = files(storage, "quarantine")
    path = account(storage, "curated_parquet", "a")
    for change in (lambda: damage(path, DAMAGE["cut"]), path.unlink):
        change()
        result = copied.run(assets=["quarantine"])
        assert not result.success
        told = told_errors(copied, result)
        assert (
            "ledger/accounts/curated_parquet/a.parquet: " in told
            and "materialize curated_parquet again" in told
        )
        assert set(materialized(result)["quarantine"]) == {"b"}
        assert files(storage, "quarantine") == before
    assert copied.run(assets=[*CURATED, "quarantine"]).success
    assert files(storage, "quarantine") == before


def told_errors(deployment: Deployment, run: dg.ExecuteInProcessResult) -> str:
    return "\n".join(
        entry.user_message for entry in deployment.instance.all_logs(run.run_id) if int(entry.level) >= 40
    )


@pytest.mark.parametrize("change", ["cut", "flipped", "removed"])
def test_damaged_scores_filter_nothing_wrongly(tmp_path: Path, copied: Deployment, change: str) -> None:
    """Made without `image_scores`, the filter measures again; it does not go by what another hand has
    left.
    """
    storage = tmp_path / "storage"
    before, lost = files(storage, "filtered"), lost_items(storage, "filtered_parquet")
    scores = storage / "scores" / "a.parquet"
    table = pq.read_table(scores)
    if change == "removed":
        scores.unlink()
    elif change == "cut":
        damage(scores, DAMAGE["cut"])
    else:
        at, widths = table.schema.get_field_index("width"), pa.array([5500] * table.num_rows, pa.int32())
        pq.write_table(table.set_column(at, table.schema.field(at), widths), scores, compression="zstd")
    for path in (storage / "filtered").iterdir():
        path.unlink()
    assert copied.run(assets=["filtered_parquet"]).success
    assert (files(storage, "filtered"), lost_items(storage, "filtered_parquet")) == (before, lost)
