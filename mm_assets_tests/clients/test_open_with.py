"""Every client opens our outputs of hostile shards, unmodified, and finds what the raw shards say.

Each opens two folders: one written by hand (``by_hand``: proves the client's script) and ours.
"""

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mm_assets_tests.cli.commands import run
from mm_assets_tests.clients.environment import convert_to_all, open_with
from mm_assets_tests.clients.hostile import PER_IMAGE, PER_TEXT, make_hostile
from mm_assets_tests.clients.open_with.normal_form import sha256, stripped
from mm_assets_tests.clients.reference import read_partitions, write_formats, write_reference
from mm_assets_tests.clients.truth import CONTENT, EXTRAS, differences, read_truth
from mm_assets_tests.training_set.sets import make_source

pytestmark = pytest.mark.clients

ALL = (*CONTENT, *EXTRAS)
# client: (folder it opens, what its report must agree on with the source)
CLIENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "webdataset_plain": ("webdataset", ALL),
    "webdataset_pil": ("webdataset", ("texts", "pixels", "errors", *EXTRAS)),
    "webdataset_dataloader": ("webdataset", ALL),
    "wids_open": ("webdataset", ALL),
    "energon_prepare": ("webdataset", ALL),
    "hf_datasets": ("webdataset", ALL),
    "curator_read": ("webdataset", ("texts", "images", "errors", *EXTRAS)),  # its TIFFs are re-encoded
    "duckdb_open": ("parquet", ALL),
    "polars_open": ("parquet", ALL),
    "pylance_open": ("lance", ALL),
}


@dataclass(frozen=True)
class Outputs:
    root: Path
    truth: dict[str, Any]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def outputs(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    root = tmp_path_factory.mktemp("outputs")
    write_reference(hostile, root / "by_hand", PER_IMAGE, PER_TEXT)
    convert_to_all(hostile, root / "ours", PER_IMAGE, PER_TEXT)
    return Outputs(root, read_truth(hostile, PER_IMAGE, PER_TEXT))


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()) for path in files}


def image_digests(folder: Path) -> dict[str, list[str | None]]:
    """Digests of the images in our tars by position, by tarfile alone."""
    found = {}
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            contents = {info.name: tar.extractfile(info).read() for info in tar.getmembers()}  # type: ignore[union-attr]
        for name, data in contents.items():
            if name.endswith(".json"):
                payload = json.loads(data)
                members = payload["image_members"]
                digests = (None if member is None else sha256(contents[member]) for member in members)
                found[payload["sample_id"]] = stripped(digests)
    return found


TRAINING = {client: parts for client, (folder, parts) in CLIENTS.items() if folder == "webdataset"}
OF_OTHER_COLUMNS = ("hf_datasets", "energon_prepare", "curator_read")


@pytest.fixture(scope="module")
def training(outputs: Outputs) -> dict[str, Path]:
    """Training sets of all samples, as tars and as MDS; and one of sources with other columns, too."""
    source = outputs.root / "ours" / "webdataset"
    made = {kind: outputs.root / f"training_{kind}" for kind in ("webdataset", "mds", "mixed")}
    for kind in ("webdataset", "mds"):
        done = run("reshard", source, made[kind], "--to", kind, "--shards", 2, "--seed", 5)
        assert done.returncode == 0, done.stderr
    make_source(outputs.root / "more", "more", shards=1, samples=3)
    done = run("reshard", source, outputs.root / "more", made["mixed"])
    assert done.returncode == 0, done.stderr
    return made


Reports = Callable[[str], dict[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def reports(outputs: Outputs, training: dict[str, Path]) -> Reports:
    """What a client reports of all folders that it opens, in one process."""
    before = tree(outputs.root)

    @cache
    def of_client(client: str) -> dict[Path, dict[str, Any]]:
        folders = [training["mds"] / "train"]
        if client in CLIENTS:
            folders = [outputs.root / name / CLIENTS[client][0] for name in ("by_hand", "ours")]
        folders += [training["webdataset"]] if client in TRAINING else []
        folders += [training["mixed"]] if client in OF_OTHER_COLUMNS else []
        found = dict(zip(folders, open_with(client, *folders), strict=True))
        assert tree(outputs.root) == before, f"{client} changed a folder it was to read"
        return found

    return of_client


@pytest.mark.parametrize("client", CLIENTS)
def test_client_finds_what_the_source_says(client: str, outputs: Outputs, reports: Reports) -> None:
    folder_name, parts = CLIENTS[client]
    for name in ("by_hand", "ours"):
        folder = outputs.root / name / folder_name
        found = reports(client)[folder]
        assert differences(outputs.truth, found, parts) == [], folder
        if folder_name == "webdataset" and "images" in parts:
            # TIFFs too, to the byte: compared with the tar, not with the source, which may hold them in
            # another layout.
            written = image_digests(folder)
            reported = {name: sample.get("ranges", sample["images"]) for name, sample in found.items()}
            assert reported == written, folder


@pytest.mark.parametrize("client", [*TRAINING, "mds_streaming"])
def test_training_sets_open_in_every_client(
    client: str, outputs: Outputs, training: dict[str, Path], reports: Reports
) -> None:
    folder = training["webdataset"] if client in TRAINING else training["mds"] / "train"
    assert differences(outputs.truth, reports(client)[folder], TRAINING.get(client, ALL)) == []


@pytest.mark.parametrize("client", OF_OTHER_COLUMNS)
def test_sources_of_other_columns_share_tars(
    client: str, outputs: Outputs, training: dict[str, Path], reports: Reports
) -> None:
    found = reports(client)[training["mixed"]]
    added = {name: sample for name, sample in found.items() if name.startswith("more/")}
    assert len(added) == 3
    assert all("url" in sample["metadata"] for sample in added.values())
    rest = {name: sample for name, sample in found.items() if name not in added}
    assert differences(outputs.truth, rest, TRAINING[client]) == []


@pytest.mark.parametrize("client", ["webdataset_plain", "duckdb_open", "pylance_open"])
def test_a_fault_is_seen(client: str, hostile: Path, tmp_path: Path) -> None:
    """What loses data silently elsewhere: a neighbour's bytes, an empty text taken for none, a rounded
    integer.
    """
    partitions = read_partitions(hostile, PER_IMAGE, PER_TEXT)
    samples = {sample.sample_id: sample for part in partitions.values() for sample in part}
    first = samples["https://ex.com/doc.v0.1?q=ü"]
    first.images[1] = first.images[3]
    samples["a/../b"].texts[0] = None
    samples["%2E"].extra["metadata"]["big"] += 1
    write_formats(tmp_path, partitions)

    (found,) = open_with(client, tmp_path / CLIENTS[client][0])
    lines = differences(read_truth(hostile, PER_IMAGE, PER_TEXT), found)

    assert sorted(line.split(" is ")[0] for line in lines) == [
        "sample '%2E': metadata ['big']",
        "sample 'a/../b': text_extra",
        "sample 'a/../b': texts",
        "sample 'https://ex.com/doc.v0.1?q=ü': images [1]",
    ]
