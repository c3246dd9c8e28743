"""One dataset in three formats says one thing, as a reader with nothing but the formats' own libraries finds
it.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from PIL import Image

from mm_assets_tests.clients.notebook.ten_samples import DOCUMENTS, IMAGES, PER_IMAGE, PER_TEXT
from mm_assets_tests.clients.open_with.normal_form import RESERVED

pytestmark = pytest.mark.clients

WIDE = 400


@pytest.fixture(scope="module")
def parquet(three_formats: Path) -> pa.Table:
    (file,) = (three_formats / "parquet").glob("*.parquet")
    return pq.read_table(file)


@pytest.fixture(scope="module")
def lance_table(three_formats: Path) -> pa.Table:
    import lance

    (folder,) = (three_formats / "lance").glob("*.lance")
    dataset = lance.dataset(str(folder))
    table = dataset.to_table()
    assert dataset.count_rows(filter="modality = 'image'") == table["modality"].to_pylist().count("image")
    return table


@pytest.fixture(scope="module")
def tar(three_formats: Path) -> str:
    (file,) = (three_formats / "webdataset").glob("*.tar")
    return str(file)


@pytest.fixture(scope="module")
def samples(tar: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(webdataset's sample, its json) in the tar's order."""
    return [(sample, json.loads(sample["json"])) for sample in wds.WebDataset(tar, shardshuffle=False)]


def size_of(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        image.verify()
    with Image.open(io.BytesIO(data)) as image:
        return image.size


def test_tables_hold_pictures_of_the_size_their_columns_say(parquet: pa.Table, lance_table: pa.Table) -> None:
    for table in (parquet, lance_table):
        rows = [row for row in table.to_pylist() if row["modality"] == "image"]
        assert len(rows) == IMAGES
        for row in rows:
            assert size_of(row["binary_content"]) == (int(row["nv_width"]), int(row["nv_height"]))


def test_parquet_and_lance_are_one_table(parquet: pa.Table, lance_table: pa.Table) -> None:
    assert lance_table.column_names == parquet.column_names
    assert lance_table.to_pylist() == parquet.to_pylist()


def test_references_are_keys_of_the_sample(samples: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    assert len(samples) == DOCUMENTS
    for sample, payload in samples:
        assert len(payload["texts"]) == len(payload["images"])
        references = [reference for reference in payload["images"] if reference is not None]
        assert {*references, "json"} == {key for key in sample if not key.startswith("__")}
        assert all(sample[reference] for reference in references)


def test_tar_and_parquet_hold_the_same_items(
    parquet: pa.Table, samples: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    table = {(row["sample_id"], row["position"], row["modality"]): row for row in parquet.to_pylist()}
    in_tar: dict[tuple[str, int, str], Any] = {}
    for sample, payload in samples:
        for position, (text, reference) in enumerate(zip(payload["texts"], payload["images"], strict=True)):
            if text is not None:
                in_tar[payload["sample_id"], position, "text"] = text
            if reference is not None:
                in_tar[payload["sample_id"], position, "image"] = sample[reference]
    items = {
        key: row["text_content"] if key[2] == "text" else row["binary_content"]
        for key, row in table.items()
        if key[2] != "metadata"
    }
    assert in_tar == items
    assert sum(key[2] == "metadata" for key in table) == len(samples)


def test_extras_stand_beside_their_items_and_nowhere_else(
    parquet: pa.Table, samples: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    columns = set(parquet.column_names) - set(RESERVED)
    assert {*PER_IMAGE, *PER_TEXT, "url"} <= columns
    rows = {(row["sample_id"], row["position"], row["modality"]): row for row in parquet.to_pylist()}
    for _, payload in samples:
        extra = payload["_row_extra"]
        assert set(extra) >= {"text", "image", "metadata"}
        for side, items in (("text", payload["texts"]), ("image", payload["images"])):
            assert len(extra[side]) == len(items)
            assert [entry is None for entry in extra[side]] == [item is None for item in items]
            for position, entry in enumerate(extra[side]):
                if entry is not None:
                    assert set(entry) >= columns
                    row = rows[payload["sample_id"], position, side]
                    assert {name: entry[name] for name in columns} == {name: row[name] for name in columns}
        assert extra["metadata"]["url"] == rows[payload["sample_id"], -1, "metadata"]["url"]
        assert all(entry is None or entry["text_lang"] == "en" for entry in extra["text"])


def test_tar_decodes_to_pictures_of_the_size_its_extras_say(
    tar: str, samples: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    decoded = list(wds.WebDataset(tar, shardshuffle=False).decode("pil"))
    seen = 0
    for sample, (_, payload) in zip(decoded, samples, strict=True):
        for reference, entry in zip(payload["images"], payload["_row_extra"]["image"], strict=True):
            if reference is not None:
                pixels = np.asarray(sample[reference])
                assert pixels.shape == (entry["nv_height"], entry["nv_width"], 3)
                seen += 1
    assert seen == IMAGES


def test_a_filter_on_size_finds_the_same_pictures_in_all_three(
    parquet: pa.Table, lance_table: pa.Table, samples: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    def wide(entry: dict[str, Any] | None) -> bool:
        return bool(entry and (entry["nv_width"] or 0) >= WIDE and (entry["nv_height"] or 0) >= WIDE)

    found = [
        {(row["sample_id"], row["position"]) for row in table.to_pylist() if wide(row)}
        for table in (parquet, lance_table)
    ]
    found.append(
        {
            (payload["sample_id"], position)
            for _, payload in samples
            for position, entry in enumerate(payload["_row_extra"]["image"])
            if wide(entry)
        }
    )
    assert found[0] == found[1] == found[2]
    assert 0 < len(found[0]) < IMAGES
