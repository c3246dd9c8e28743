"""Where the content of a sample is after real runs, with tags, pages and a training set."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.erasures import SAMPLE_ID, URL, DenyList, Entry, Erasure
from mm_assets.accounting.needles import IMAGE, MEMBER, TEXT, Needles
from mm_assets.accounting.scan import scan
from mm_assets.accounting.traces import Found, find, without_shared
from mm_assets_tests.accounting.test_scan import Here
from mm_assets_tests.cli.commands import run
from tools.demo import make_shards

pytestmark = pytest.mark.usefixtures("shared_workers")

SETTINGS = {
    "MM_MIN_ASPECT_RATIO": "1",
    "MM_MAX_ASPECT_RATIO": "2",
    "MM_SCORES": "sha256,perceptual_hash,perceptual_quality",
    "MM_MAX_LOSS": "1",
}
BAD_URL = "https://bad.example.org/a.html?page=1&of=<2>"
BAD_TEXT = 'A text with an "é" that a sample with bad images has in its document, and nothing else.'


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _bad_shard(path: Path) -> bytes:
    """A shard whose samples all go to quarantine; the image of one of them."""
    noise = np.random.default_rng(1).bytes(6_000)
    with tarfile.open(path, "w") as tar:
        document = {"url": BAD_URL, "texts": [BAD_TEXT, None], "images": [None, "bad-1.9.jpg"]}
        _add(tar, "bad-1.json", json.dumps(document).encode())  # its image is missing
        _add(tar, "bad-2.json", json.dumps({"texts": [None], "images": ["bad-2.0.jpg"]}).encode())
        _add(tar, "bad-2.0.jpg", noise)
        _add(tar, "bad-3.json", b'{"texts": ["' + BAD_TEXT.encode() + b'", ')
    return noise


class Made:
    """What `mm-assets` has made in a folder: raw, storage and home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = folder / "storage"

    def command(self, *arguments: object, **settings: str) -> None:
        places = {"MM_RAW_SHARDS": f"{self.folder}/raw", "MM_STORAGE": str(self.storage)}
        done = run(*arguments, DAGSTER_HOME=f"{self.folder}/home", **{**SETTINGS, **places, **settings})
        assert done.returncode == 0, done.stderr

    def rows(self, shard: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.storage / "curated" / f"{shard}.parquet").to_pylist()
        return rows

    def find(self, *entries: Entry) -> Found:
        return find(str(self.storage), DenyList.of([Erasure.begin(entries)]), Here())

    def places(self, needles: Needles) -> dict[str, set[str]]:
        """Kinds of content by place: names of files without shards and digests."""
        found = scan([str(self.storage), f"{self.folder}/home"], needles, Here())
        assert not found.unread
        places: dict[str, set[str]] = {}
        for occurrence in found.occurrences:
            places.setdefault(_place(occurrence.path.removeprefix(f"{self.folder}/")), set()).add(
                occurrence.kind
            )
        return places


def _place(path: str) -> str:
    path = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", path)
    path = re.sub(r"[0-9a-f@-]{32,}", "DIGEST", re.sub(r"(web|pdf|bad)-\d{5}", "SHARD", path))
    return re.sub(r"SHARD@?DIGEST", "SHARD", path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    (folder / "home").mkdir()
    make_shards(folder / "raw", members=2, pdf=1, samples=4)
    _bad_shard(folder / "raw" / "bad-00000.tar")
    made = Made(folder)
    made.command("run")
    made.command("tag", "v1")
    made.command("run", "--assets", "training_set")
    made.command("run", MM_MAX_ASPECT_RATIO="1.7")
    made.command("report")
    made.command("preview", "--html", folder / "storage" / "report" / "preview.html")
    return made


def _sample(made: Made, shard: str = "web-00000") -> str:
    """A sample with two images or more, of which a filter takes some out."""
    rows = made.rows(shard)
    kept = pq.read_table(made.storage / "filtered" / f"{shard}.parquet", columns=["sample_id"])
    ids = kept.column(0).to_pylist()
    return str(next(i for i in ids if sum(r["sample_id"] == i for r in rows) > ids.count(i)))


EVERYWHERE = {
    "storage/curated/SHARD.parquet": {IMAGE, MEMBER, SAMPLE_ID, TEXT, URL},
    "storage/filtered/SHARD.parquet": {IMAGE, MEMBER, SAMPLE_ID, TEXT, URL},
    "storage/webdataset/SHARD.tar": {IMAGE, MEMBER, SAMPLE_ID, TEXT, URL},
    "storage/arrow_cache/SHARD/shard-00000.arrow": {IMAGE, MEMBER, SAMPLE_ID, TEXT, URL},
    "storage/lance/items.lance/data/DIGEST.lance": {IMAGE, MEMBER, SAMPLE_ID, TEXT, URL},
    "storage/lance/items.lance/_indices/UUID/page_data.lance": {SAMPLE_ID},
    "storage/lance/items.lance/_mm_assets/partitions/SHARD.arrow": {SAMPLE_ID},
    "storage/training/train-000000.tar": {IMAGE, MEMBER, SAMPLE_ID, TEXT, URL},
    "storage/training/plan.parquet": {SAMPLE_ID},
    "storage/scores/SHARD.parquet": {SAMPLE_ID},
    "storage/sample_scores/SHARD.parquet": {SAMPLE_ID},
    "storage/ledger/accounts/filtered_parquet/SHARD.parquet": {MEMBER, SAMPLE_ID},
    "storage/ledger/raw_shards/SHARD.parquet": {MEMBER, SAMPLE_ID},
    "storage/versions/samples/DIGEST.parquet": {SAMPLE_ID},
    "storage/versions/losses/DIGEST.parquet": {MEMBER, SAMPLE_ID},
}


def test_places_of_a_sample(made: Made) -> None:
    sample_id = _sample(made)
    found = made.find(Entry.of("sample_id", sample_id))
    (sample,) = found.samples
    rows = [row for row in made.rows("web-00000") if row["sample_id"] == sample_id]
    assert (sample.partition, sample.sample_id, sample.is_whole) == ("web-00000", sample_id, True)
    assert set(sample.items) == {(row["position"], row["modality"]) for row in rows}
    with tarfile.open(made.folder / "raw" / "web-00000.tar") as tar:
        names = [name for name in tar.getnames() if name.startswith(f"{sample_id}.")]
    assert sample.members == tuple(("web-00000.tar", name) for name in sorted(names))
    assert found.rows() == {"web-00000": len(rows)}
    needles = without_shared(str(made.storage), found, Here())
    assert needles.counts() == found.needles.counts()
    places = made.places(needles)
    pages = {name: places.pop(name) for name in list(places) if name.endswith(".html")}
    assert places == EVERYWHERE
    assert set(pages) <= {"storage/report/index.html", "storage/report/preview.html"}


def test_nothing_is_found_that_python_does_not_find(made: Made) -> None:
    """All files that have the id, the URL or a text as they are, by Python's own search."""
    sample_id = _sample(made)
    rows = [row for row in made.rows("web-00000") if row["sample_id"] == sample_id]
    contents = [sample_id.encode(), rows[0]["url"].encode()]
    contents += [row["text_content"].encode() for row in rows if row["text_content"]]
    contents += [row["binary_content"] for row in rows if row["binary_content"]]
    needles = made.find(Entry.of("sample_id", sample_id)).needles
    found = scan([str(made.storage), f"{made.folder}/home"], needles, Here())
    files = [file for top in ("storage", "home") for file in (made.folder / top).rglob("*") if file.is_file()]
    naive = {str(file) for file in files if any(c in data for data in _datas(file) for c in contents)}
    assert naive - set(found.paths()) == set()
    others = {_place(path) for path in set(found.paths()) - naive}
    # Packed ids behind a header, and images as base64.
    assert {place.rpartition("/")[2] for place in others} <= {"SHARD.arrow", "preview.html", "index.html"}


def _datas(file: Path) -> Iterator[bytes]:
    data = file.read_bytes()
    yield data
    if data[:4] == b"PAR1":
        for column in pq.read_table(file).columns:
            yield json.dumps(column.to_pylist(), default=lambda value: value.hex()).encode()


def test_sample_of_a_pdf(made: Made) -> None:
    sample_id = made.rows("pdf-00000")[0]["sample_id"]
    found = made.find(Entry.of("sample_id", sample_id))
    assert [sample.partition for sample in found.samples] == ["pdf-00000"]
    raw = scan([f"{made.folder}/raw"], found.needles, Here())
    assert {Path(path).name for path in raw.paths()} == {"pdf-00000.tar"}
    # The strips of a frame lie in the raw file as they lie in the image that was made of it.
    assert IMAGE in {occurrence.kind for occurrence in raw.occurrences}


def test_url(made: Made) -> None:
    row = made.rows("web-00001")[0]
    found = made.find(Entry.of("url", row["url"]))
    assert [(s.sample_id, s.is_whole) for s in found.samples] == [(row["sample_id"], True)]
    by_id = made.find(Entry.of("sample_id", row["sample_id"]))
    assert found.samples == by_id.samples
    assert replace(found.needles, omitted={}) == replace(by_id.needles, omitted={})


@pytest.mark.parametrize("kind", ["sha256", "md5", "pdq"])
@pytest.mark.parametrize("has_scores", [True, False])
def test_image(made: Made, kind: str, has_scores: bool, tmp_path: Path) -> None:
    scores = pq.read_table(made.storage / "scores" / "web-00001.parquet").to_pylist()
    score = next(row for row in scores if (row["perceptual_quality"] or 0) > 50)
    key = score["sample_id"], score["position"]
    image = next(
        row["binary_content"]
        for row in made.rows("web-00001")
        if (row["sample_id"], row["position"]) == key and row["modality"] == "image"
    )
    if not has_scores:
        shutil.copytree(made.storage, tmp_path / "storage")
        shutil.rmtree(tmp_path / "storage" / "scores")
        shutil.rmtree(tmp_path / "storage" / "ledger" / "accounts" / "image_scores")
        made = Made(tmp_path)
    value = {
        "sha256": hashlib.sha256(image).hexdigest(),
        "md5": hashlib.md5(image).hexdigest(),
        "pdq": score["perceptual_hash"],
    }[kind]
    found = made.find(Entry.of(kind, value))
    (sample,) = found.samples
    assert (sample.sample_id, sample.items, sample.is_whole) == (key[0], ((key[1], "image"),), False)
    assert found.needles.counts() == {IMAGE: 1}
    assert made.places(found.needles)["storage/curated/SHARD.parquet"] == {IMAGE}


def test_sample_that_was_lost(made: Made) -> None:
    found = made.find(Entry.of("sample_id", "bad-2"))
    (sample,) = found.samples
    assert (sample.partition, sample.is_whole) == ("bad-00000", True)
    assert sample.members == (("bad-00000.tar", "bad-2.0.jpg"), ("bad-00000.tar", "bad-2.json"))
    places = made.places(without_shared(str(made.storage), found, Here()))
    events = {place for place in places if place.startswith("home/")}
    assert "home/history/runs/index.db" in events  # a check tells of its image
    assert {place: kinds for place, kinds in places.items() if place not in events} == {
        "storage/quarantine/SHARD.parquet": {IMAGE, SAMPLE_ID},
        "storage/ledger/accounts/curated_parquet/SHARD.parquet": {SAMPLE_ID},
        "storage/ledger/accounts/quarantine/SHARD.parquet": {SAMPLE_ID},
        "storage/ledger/raw_shards/SHARD.parquet": {SAMPLE_ID},
        "storage/versions/losses/DIGEST.parquet": {SAMPLE_ID},
    }


# That of "bad-2": nobody keeps it, as one of its images is bad.
DROPPED = {"url, in documents of samples that ingest dropped": 1}


def test_document_in_quarantine(made: Made) -> None:
    found = made.find(Entry.of("url", BAD_URL))
    assert [(sample.sample_id, sample.is_whole) for sample in found.samples] == [("bad-1", True)]
    # The same text is in a document that stays.
    needles = without_shared(str(made.storage), found, Here())
    assert needles.counts() == {SAMPLE_ID: 1, URL: 1}
    omitted = {"text, other samples have it, too": 1, "text, too short or plain": 1}
    assert needles.omitted == omitted | DROPPED
    assert made.places(needles)["storage/quarantine/SHARD.parquet"] == {SAMPLE_ID, URL}


def test_image_in_quarantine(made: Made, tmp_path: Path) -> None:
    noise = _bad_shard(tmp_path / "bad.tar")
    found = made.find(Entry.of("sha256", hashlib.sha256(noise).hexdigest()))
    assert [(s.sample_id, s.items, s.is_whole) for s in found.samples] == [("bad-2", ((0, "image"),), False)]
    assert made.places(found.needles) == {"storage/quarantine/SHARD.parquet": {IMAGE}}


def test_nothing_is_meant(made: Made) -> None:
    found = made.find(Entry.of("sample_id", "nobody"), Entry.of("url", "https://example.org/none"))
    assert (found.samples, found.rows(), found.needles) == ((), {}, Needles(omitted=DROPPED))
    assert not scan([str(made.storage)], found.needles, Here()).occurrences


def test_image_that_stays_in_another_sample(tmp_path: Path) -> None:
    image = np.random.default_rng(3).bytes(4_000)
    text = "Both samples have this sentence, which is more than twenty-four bytes long."
    (tmp_path / "storage" / "curated").mkdir(parents=True)
    (tmp_path / "storage" / "ledger" / "raw_shards").mkdir(parents=True)
    columns: dict[str, Any] = {
        "sample_id": ["one-of-two-samples", "one-of-two-samples", "other-of-two-samples"],
        "position": pa.array([-1, 0, 0], pa.int32()),
        "modality": ["metadata", "image", "image"],
        "source_ref": pa.nulls(3, pa.string()),
        "binary_content": pa.array([None, image, image], pa.large_binary()),
        "caption": [text, "Only the first sample has this sentence here.", f"And: {text}"],
    }
    pq.write_table(pa.table(columns), tmp_path / "storage" / "curated" / "a.parquet")
    survey = {"sample_id": columns["sample_id"][1:], "source": ["a.tar"] * 2, "member": ["1.json", "2.json"]}
    pq.write_table(pa.table(survey), tmp_path / "storage" / "ledger" / "raw_shards" / "a.parquet")
    found = Made(tmp_path).find(Entry.of("sample_id", "one-of-two-samples"))
    needles = without_shared(str(tmp_path / "storage"), found, Here())
    assert found.needles.counts() == {IMAGE: 1, SAMPLE_ID: 1, TEXT: 2}
    assert needles.counts() == {SAMPLE_ID: 1, TEXT: 1}
    assert needles.omitted == {"image, other samples have it, too": 1, "text, other samples have it, too": 1}
    # Denied by its bytes, the image stays in no sample.
    found = Made(tmp_path).find(Entry.of("sha256", hashlib.sha256(image).hexdigest()))
    assert [sample.sample_id for sample in found.samples] == ["one-of-two-samples", "other-of-two-samples"]
    assert without_shared(str(tmp_path / "storage"), found, Here()).counts() == {IMAGE: 1, TEXT: 2}
