"""Every client opens our outputs of hostile shards, unmodified, and finds what the raw shards say.

Each case runs twice: on folders written by hand (``by_hand``: proves the client's script) and on ours.
"""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mm_assets_tests.clients.environment import convert, open_with
from mm_assets_tests.clients.hostile import PER_IMAGE, PER_TEXT, make_hostile
from mm_assets_tests.clients.open_with.normal_form import sha256, stripped
from mm_assets_tests.clients.reference import read_partitions, write_formats, write_reference
from mm_assets_tests.clients.truth import CONTENT, EXTRAS, differences, read_truth

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


@pytest.fixture(scope="module", params=["by_hand", "ours"])
def outputs(
    request: pytest.FixtureRequest, hostile: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outputs:
    root = tmp_path_factory.mktemp(request.param)
    (write_reference if request.param == "by_hand" else convert)(hostile, root, PER_IMAGE, PER_TEXT)
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


@pytest.mark.parametrize("client", CLIENTS)
def test_client_finds_what_the_source_says(client: str, outputs: Outputs) -> None:
    folder_name, parts = CLIENTS[client]
    folder = outputs.root / folder_name
    before = tree(folder)

    found = open_with(client, folder)

    assert differences(outputs.truth, found, parts) == []
    assert tree(folder) == before, f"{client} changed the folder it was to read"
    if folder_name == "webdataset" and "images" in parts:
        # TIFFs too, to the byte: compared with the tar, not with the source, which may hold them in another
        # layout.
        written = image_digests(folder)
        reported = {sample_id: sample.get("ranges", sample["images"]) for sample_id, sample in found.items()}
        assert reported == written


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

    found = open_with(client, tmp_path / CLIENTS[client][0])
    lines = differences(read_truth(hostile, PER_IMAGE, PER_TEXT), found)

    assert sorted(line.split(" is ")[0] for line in lines) == [
        "sample '%2E': metadata ['big']",
        "sample 'a/../b': text_extra",
        "sample 'a/../b': texts",
        "sample 'https://ex.com/doc.v0.1?q=ü': images [1]",
    ]
