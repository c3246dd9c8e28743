"""What a deny list takes out of raw shards, on the way through the whole graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mm_assets import read
from mm_assets.accounting.erasures import Entry, Erasure, ErasureStore, alias_of
from mm_assets.accounting.survey_store import SurveyStore, scrub_surveys
from mm_assets.cli import main
from mm_assets.filters.measure import ImageContent
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.formats.images import probe
from mm_assets_tests.filters.test_contamination import jpeg as photograph
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.images.tiff_tools import tiff_of
from mm_assets_tests.formats.paired.raw.modalities import images_of, make_modalities, texts_of
from mm_assets_tests.formats.parquet_of_others import documents, image, interleaved
from mm_assets_tests.formats.pdf.pdf_files import Page, jpeg, jpeg_picture, pdf
from mm_assets_tests.formats.pdf.pdf_files import lines as page_lines
from mm_assets_tests.formats.pdf.reading import files_in
from mm_assets_tests.graph.deployment import (
    CURATED,
    Deployment,
    failed_checks,
    materialized,
    prove,
    write_tar,
)
from mm_assets_tests.graph.published import account, ids_in_outputs, lost_items, record_in, table
from mm_assets_tests.graph.samples import PNG, document, samples

Deploy = Callable[..., Deployment]
ALL_IMAGES = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}
URL = "https://example.org/s001"


def erase(storage: str | Path, partitions: Iterable[str], *entries: Entry) -> str:
    erasure = replace(Erasure.begin(entries), partitions=dict.fromkeys(partitions, 1))
    ErasureStore(str(storage)).write(erasure)
    return erasure.id


def names_in(folder: Path, text: str) -> list[str]:
    """The files below a folder that have a text, in plain or inside Parquet.

    A text of hex digits alone may be part of a digest.
    """
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
    write_tar(tmp_path / "raw" / "a.tar", {**samples(3, "first-"), **more})
    write_tar(tmp_path / "raw" / "b.tar", samples(3, "b"))
    twice = {"x.json": document("first-001", sample_id="first-001"), "first-001.1.png": picture(2)[1]}
    write_tar(tmp_path / "raw" / "c.tar", {**samples(2, "c"), **twice})
    deployment = deploy(**ALL_IMAGES)
    first = deployment.run()
    assert first.success
    assert failed_checks(first) >= {("raw_shards", "integrity", "a"), ("quarantine", "empty", "c")}
    storage = Path(deployment.storage)
    assert names_in(storage / "quarantine", "bad-secret") and names_in(storage / "ledger", "first-001")
    before = {name: record_in(account(storage, "curated_parquet", name)) for name in "abc"}

    entries = [Entry.of("sample_id", name) for name in ("first-001", "bad-secret")]
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
    assert all(not ids & {"first-001", "bad-secret"} for ids in ids_in_outputs(storage).values())
    reason = f"erased on request {id_}"
    lost = {
        (row["partition"], row["sample_id"], row["position"], row["reason"]) for row in lost_items(storage)
    }
    assert lost == {
        *(("a", alias_of("first-001"), position, reason) for position in (-1, 0, 1)),
        ("a", alias_of("bad-secret"), -1, reason),
        ("a", None, None, "erased on request"),
        *(("c", alias_of("first-001"), position, reason) for position in (-1, 0, 1)),
    }
    records = pq.read_table(storage / "quarantine").to_pylist()
    assert {(row["sample_id"], row["kind"], row["raw"], row["raw_note"]) for row in records} == {
        (alias_of(name), "erased", None, "nothing of it is kept: it is denied")
        for name in ("first-001", "bad-secret")
    }
    for name in ("first-001", "bad-secret"):
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
        assert main([command, "first-001", "--storage", str(storage)]) == 0
        out = capsys.readouterr().out
        assert out.startswith("sample first-001\n") and reason in out and "text of" not in out
    third = deployment.run()
    assert all(
        made.metadata.get("unchanged") for shards in materialized(third).values() for made in shards.values()
    )


def tars(folder: Path) -> str:
    write_tar(folder / "raw" / "a.tar", samples(3, "a"))
    pictures = {f"d{n}.{n}.png": picture(n)[1] for n in range(3)}
    of = {f"d{n}.json": {"texts": ["t", None], "images": [None, f"d{n}.{n}.png"]} for n in range(3)}
    jsons = {name: json.dumps(value).encode() for name, value in of.items()}
    write_tar(folder / "raw" / "b.tar", {**jsons, **pictures})
    return str(folder / "raw")


def frames(folder: Path) -> str:
    """Documents of TIFFs, of which each image is a frame."""
    members: dict[str, bytes] = {}
    for name, pages in (("w", 4), ("x", 2), ("y", 3)):
        members[f"{name}.json"] = json.dumps(
            {"texts": ["t", *[None] * pages], "images": [None, *[f"{name}.tiff"] * pages]}
        ).encode()
        members[f"{name}.tiff"] = tiff_of(pages, quality=50 + pages)
    write_tar(folder / "raw" / "t.tar", members)
    return str(folder / "raw")


def paired(folder: Path) -> str:
    keys = [f"doc/{number}" for number in range(3)]
    return make_modalities(folder / "raw", {"a": {"images": [*images_of(keys)], "texts": [*texts_of(keys)]}})


def lines(folder: Path) -> str:
    read(tars(folder / "tars")).write(folder / "lines", "jsonl")
    return str(folder / "lines")


def parquet(folder: Path) -> str:
    texts = [["a", None], ["b", None], ["c", None]]
    columns = interleaved(texts, [[None, image(n)] for n in range(3)], uid=(pa.string(), ["u", "v", "w"]))
    documents(folder / "raw" / "p.parquet", columns)
    return str(folder / "raw")


def pdfs(folder: Path) -> str:
    colours = {"a.pdf": jpeg(200, 10, 10), "b.pdf": jpeg(10, 10, 200), "c.pdf": jpeg(10, 200, 10)}
    files = {
        name: pdf([Page(page_lines([name], 50, 700), [jpeg_picture(data, (50.0, 400.0, 120.0, 80.0))])])
        for name, data in colours.items()
    }
    return files_in(folder, files)


def curated(storage: Path | str) -> list[dict[str, Any]]:
    columns = ["sample_id", "position", "modality", "text_content", "binary_content"]
    return table(Path(storage), "curated").select(columns).to_pylist()


@pytest.mark.parametrize("kind", [tars, frames, paired, lines, parquet, pdfs])
@pytest.mark.parametrize("policy", ["drop_sample", "error"])
def test_a_sample_and_an_image_of_every_kind_of_raw_shards(
    tmp_path: Path, deploy: Deploy, kind: Callable[[Path], str], policy: str
) -> None:
    """What is left is as it was; with the policy that drops samples, the image takes its own with it."""
    options = {"MM_SAMPLE_ID_FIELD": "uid"} if kind is parquet else {}
    deployment = deploy(raw=kind(tmp_path), MM_ON_MATERIALIZE_ERROR=policy, **ALL_IMAGES, **options)
    assert deployment.run().success
    before = curated(deployment.storage)
    erased = before[0]["sample_id"]
    shown = [row for row in before if row["modality"] == "image" and row["sample_id"] != erased]
    of_image = shown[-1]
    same = [row for row in before if row["binary_content"] == of_image["binary_content"]]
    assert len(same) == 1
    accounts = Path(deployment.storage).glob("ledger/accounts/curated_parquet/*")
    keys = [record["key"] for record in map(record_in, accounts)]
    digest = hashlib.sha256(of_image["binary_content"]).hexdigest()
    id_ = erase(deployment.storage, keys, Entry.of("sample_id", erased), Entry.of("sha256", digest))
    scrub_surveys(deployment.storage, keys)
    second = deployment.run()
    assert second.success and failed_checks(second) == set()

    def is_gone(row: dict[str, Any]) -> bool:
        if policy == "drop_sample" and row["sample_id"] == of_image["sample_id"]:
            return True
        return row["sample_id"] == erased or row == of_image

    assert curated(deployment.storage) == [row for row in before if not is_gone(row)]
    lost = [
        (row["sample_id"], row["position"], row["modality"], row["kind"], row["reason"], row["member"])
        for row in lost_items(deployment.storage, "curated_parquet")
    ]
    reason = f"erased on request {id_}"
    for row in filter(is_gone, before):
        name = alias_of(erased) if row["sample_id"] == erased else row["sample_id"]
        found = [each for each in lost if each[:3] == (name, row["position"], row["modality"])]
        assert len(found) == 1
        if row["sample_id"] == erased or row == of_image:
            assert found[0][3:] == ("erased", reason, None)
        else:
            because = f"its sample has an error at position {of_image['position']}: {reason}"
            assert found[0][3:5] == ("incomplete_sample", because)
    assert len(lost) == sum(map(is_gone, before))
    assert prove(deployment)[:2] == (True, {})
    assert all(erased not in ids for ids in ids_in_outputs(Path(deployment.storage)).values())


def test_a_listed_hash_is_taken_out_and_a_changed_list_makes_all_anew(tmp_path: Path, deploy: Deploy) -> None:
    """By SHA-256, MD5 and PDQ; of what is listed there is a record, and neither bytes nor picture."""
    pictures = [photograph(seed) for seed in range(4)]
    for n, data in enumerate(pictures):
        members = {f"s{n}.json": json.dumps({"texts": ["t", None], "images": [None, f"s{n}.jpg"]}).encode()}
        write_tar(tmp_path / "raw" / f"{n}.tar", {**members, f"s{n}.jpg": data})
    listed = tmp_path / "known.csv"
    sha256, md5 = hashlib.sha256(pictures[0]).hexdigest(), hashlib.md5(pictures[1]).hexdigest()
    hash_, _ = ImageContent(memoryview(pictures[2]), probe(pictures[2]), MAX_PIXELS).perceptual
    listed.write_text(f"sha256,md5,pdq,radius\n{sha256.upper()},,,\n,{md5},,\n,,{hash_},0\n")
    deployment = deploy(MM_ON_MATERIALIZE_ERROR="drop_row", MM_HASH_LISTS=str(listed), **ALL_IMAGES)
    result = deployment.run()
    assert result.success and failed_checks(result) == set()
    made = materialized(result)["curated_parquet"]
    assert {key: "preview_dropped" in each.metadata for key, each in made.items()} == dict.fromkeys(
        "0123", False
    )
    lost = {(row["sample_id"], row["kind"], row["reason"]) for row in lost_items(deployment.storage)}
    assert lost == {(f"s{n}", "listed_hash", "matches the hash list known.csv") for n in range(3)}
    records = pq.read_table(Path(deployment.storage) / "quarantine").to_pylist()
    assert [(row["sample_id"], row["raw"]) for row in records] == [("s0", None), ("s1", None), ("s2", None)]
    kept = table(Path(deployment.storage), "curated").filter(pc.field("modality") == "image")
    assert kept["sample_id"].to_pylist() == ["s3"]
    again = materialized(deployment.run())["curated_parquet"]
    assert all(each.metadata.get("unchanged") for each in again.values())
    listed.write_text(f"md5\n{md5}\n")
    third = materialized(deployment.run())["curated_parquet"]
    assert not any(each.metadata.get("unchanged") for each in third.values())
    assert {row["sample_id"] for row in lost_items(deployment.storage)} == {"s1"}


def test_a_list_that_cannot_be_used_is_one_line(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(1))
    listed = tmp_path / "known.txt"
    listed.write_text("12\n")
    deployment = deploy(MM_HASH_LISTS=str(listed))
    result = deployment.run(assets=CURATED)
    assert not result.success
    assert f"{listed}: row 1: sha256: '12' is not 64 hex digits" in told(deployment, result.run_id)
    missing = str(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=f"MM_HASH_LISTS: {missing}"):
        deploy(MM_HASH_LISTS=missing).run(assets=CURATED)


def test_a_sample_that_its_url_erases_is_hidden_in_its_survey_too(tmp_path: Path, deploy: Deploy) -> None:
    """The list was there before the shard; the id is only known by the rows."""
    write_tar(
        tmp_path / "raw" / "a.tar",
        {**samples(2), "x.json": document("x", url=URL, n=7654321098765), "x.1.png": PNG},
    )
    erase(tmp_path / "storage", [], Entry.of("url", URL))
    deployment = deploy(**ALL_IMAGES)
    result = deployment.run()
    assert result.success and failed_checks(result) == set()
    survey = SurveyStore(deployment.storage).read("a")
    assert survey is not None
    assert survey.sample_ids.to_pylist() == ["s000", "s001", alias_of("x")]
    assert names_in(Path(deployment.storage), "7654321098765") == []
    assert "text of x" not in told(deployment, result.run_id)
    assert names_in(Path(deployment.storage), URL) == []
    assert record_in(account(deployment.storage, "curated_parquet", "a"))["account"]["lost_ids"] == [
        alias_of("x")
    ]
    unchanged = materialized(deployment.run())["curated_parquet"]["a"]
    assert unchanged.metadata.get("unchanged")


def test_under_the_policy_error_only_other_faults_fail_a_shard(tmp_path: Path, deploy: Deploy) -> None:
    """A broken sample that is erased does not, and its name is told nowhere."""
    broken = {"secret.json": b'{"texts": ["nope'}
    write_tar(tmp_path / "raw" / "a.tar", {**samples(2, "a"), **broken})
    write_tar(tmp_path / "raw" / "b.tar", {**samples(2, "b"), **broken, "other.json": b"{"})
    erase(tmp_path / "storage", ["a"], Entry.of("sample_id", "secret"))
    deployment = deploy(MM_ON_MATERIALIZE_ERROR="error", **ALL_IMAGES)
    result = deployment.run(assets=CURATED)
    assert not result.success and set(materialized(result)["curated_parquet"]) == {"a"}
    assert "b.tar: other.json: " in deployment.log(result)
    assert "secret" not in told(deployment, result.run_id)
    assert {row["sample_id"] for row in lost_items(deployment.storage)} == {alias_of("secret")}


def test_data_cannot_say_that_they_were_erased(tmp_path: Path, deploy: Deploy) -> None:
    """It would be a way past MM_MAX_LOSS and the quarantine."""
    claimed = {
        "sample_id": "x",
        "texts": [],
        "images": [],
        "_row_extra": {"text": [], "image": [], "metadata": {}},
        "_mm_assets": {"refused": ["erased", "why", None]},
    }
    write_tar(tmp_path / "raw" / "a.tar", {**samples(3), "x.json": json.dumps(claimed).encode()})
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run(assets=CURATED).success
    assert [(row["sample_id"], row["kind"]) for row in lost_items(deployment.storage)] == [
        ("x", "bad_layout")
    ]
