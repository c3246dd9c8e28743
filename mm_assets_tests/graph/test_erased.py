"""What a deny list takes out of raw shards, on the way through the whole graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.erasures import DenyList, Entry, Erasure, ErasureStore, alias_of
from mm_assets.accounting.survey_store import SurveyStore, scrub_surveys
from mm_assets.cli import main
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import (
    CURATED,
    Deployment,
    failed_checks,
    materialized,
    prove,
    write_tar,
)
from mm_assets_tests.graph.published import ids_in_outputs, lost_items, record_in, account
from mm_assets_tests.graph.samples import document, samples

Deploy = Callable[..., Deployment]
ALL_IMAGES = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}
URL = "https://example.org/s001"


def erase(storage: str | Path, partitions: Iterable[str], *entries: Entry) -> str:
    erasure = replace(Erasure.begin(entries), partitions=dict.fromkeys(partitions, 1))
    ErasureStore(str(storage)).write(erasure)
    return erasure.id


def names_in(folder: Path, text: str) -> list[str]:
    """The files below a folder that have a text, in plain or inside Parquet."""
    found = []
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            data = file.read_bytes()
            if file.suffix == ".parquet":
                data += json.dumps(pq.read_table(file).to_pylist(), default=str).encode()
                data += str(pq.read_metadata(file).metadata).encode()
            if text.encode() in data:
                found.append(str(file.relative_to(folder)))
    return found


def told(deployment: Deployment, run_id: str) -> str:
    return "\n".join(str(record) for record in deployment.instance.get_records_for_run(run_id).records)


def test_only_the_shard_that_holds_it_is_made_again_and_nothing_tells_of_it(
    tmp_path: Path, deploy: Deploy, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sample by its id; a second one in the same shard is there twice, a third has a broken json."""
    broken = b'{"sample_id": "bad-secret", "texts": ["bad-secret'
    more = {"bad-secret.json": broken, "bad-secret.0.png": picture(1)[1]}
    write_tar(tmp_path / "raw" / "a.tar", {**samples(3, "a"), **more})
    write_tar(tmp_path / "raw" / "b.tar", samples(3, "b"))
    twice = {"x.json": document("a001", sample_id="a001"), "a001.1.png": picture(2)[1]}
    write_tar(tmp_path / "raw" / "c.tar", {**samples(2, "c"), **twice})
    deployment = deploy(**ALL_IMAGES)
    first = deployment.run()
    assert first.success
    assert failed_checks(first) >= {("raw_shards", "integrity", "a"), ("quarantine", "empty", "c")}
    storage = Path(deployment.storage)
    assert names_in(storage / "quarantine", "bad-secret") and names_in(storage / "ledger", "a001")
    before = {name: record_in(account(storage, "curated_parquet", name)) for name in "abc"}

    entries = [Entry.of("sample_id", name) for name in ("a001", "bad-secret")]
    id_ = erase(storage, ["a", "c"], *entries)
    assert scrub_surveys(str(storage), ["a", "b", "c"]) == 2
    second = deployment.run()
    assert second.success and failed_checks(second) == set()
    after = {name: record_in(account(storage, "curated_parquet", name)) for name in "abc"}
    assert after["b"] == before["b"]
    assert after["a"]["fingerprint"] != before["a"]["fingerprint"]
    unchanged = {
        asset: {key for key, made in shards.items() if made.metadata.get("unchanged")}
        for asset, shards in materialized(second).items()
    }
    assert unchanged["curated_parquet"] == {"b"} and unchanged["filtered_parquet"] == {"b", "c"}
    assert all(not ids & {"a001", "bad-secret"} for ids in ids_in_outputs(storage).values())
    reason = f"erased on request {id_}"
    lost = {
        (row["partition"], row["sample_id"], row["position"], row["reason"]) for row in lost_items(storage)
    }
    assert lost == {
        *(("a", alias_of("a001"), position, reason) for position in (-1, 0, 1)),
        ("a", alias_of("bad-secret"), -1, reason),
        ("a", None, None, "erased on request"),
        *(("c", alias_of("a001"), position, reason) for position in (-1, 0, 1)),
    }
    records = pq.read_table(storage / "quarantine").to_pylist()
    assert {(row["sample_id"], row["kind"], row["raw"], row["raw_note"]) for row in records} == {
        (alias_of(name), "erased", None, "nothing of it is kept: it is denied")
        for name in ("a001", "bad-secret")
    }
    for name in ("a001", "bad-secret"):
        assert not [
            file
            for file in names_in(storage, name)
            if not file.startswith("lance/")  # its earlier versions
        ]
        assert name not in told(deployment, second.run_id)
    proven, problems, _ = prove(deployment)
    assert proven and problems == {}
    capsys.readouterr()
    for command in ("explain", "show"):
        assert main([command, "a001", "--storage", str(storage)]) == 0
        out = capsys.readouterr().out
        assert out.startswith("sample a001\n") and reason in out and "text of" not in out
    third = deployment.run()
    assert all(
        made.metadata.get("unchanged") for shards in materialized(third).values() for made in shards.values()
    )
