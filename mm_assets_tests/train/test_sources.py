"""Samples of every format by number: the same documents, each read alone."""

from __future__ import annotations

import io
import pickle
import shutil
import tarfile
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject, settings
from PIL import Image

from mm_assets.formats.names import format_of
from mm_assets.model.errors import DataError, MmAssetsError
from mm_assets.model.json_codec import json_field
from mm_assets.model.samples import document_of, sample_offsets
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets.train import InterleavedDataset
from mm_assets.training_set.plan import Recipe
from mm_assets_tests.formats.any_tables import tables
from mm_assets_tests.formats.datasets import batch_of, item, read, write
from mm_assets_tests.formats.odd_samples import hostile
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.training_set.sets import Here, make_source, source, training_set
from tools.demo import make_shards

FORMATS = ("webdataset", "parquet", "lance", "arrow_cache")


def documents(path: Any, **options: Any) -> list[Any]:
    return list(InterleavedDataset(path, **options))


def expected(table: pa.Table) -> dict[str, str]:
    """The documents of a table by id, as text: NaN is itself, then."""
    found = [
        document_of(table.slice(start, stop - start).to_batches(), table.schema)
        for start, stop in pairwise(sample_offsets(table).tolist())
    ]
    return {one["sample_id"]: plain(one) for one in found}


def plain(document: dict[str, Any]) -> str:
    """A document as text, without columns that have no value: a tar need not name them."""
    metadata = {name: value for name, value in document["metadata"].items() if value is not None}
    return repr(_sorted({**document, "metadata": metadata}))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return list(map(_sorted, value)) if isinstance(value, list) else value


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    root = tmp_path_factory.mktemp("odd")
    table = read("webdataset", make_tar(root / "hostile.tar", hostile()))
    halves = np.array_split(np.arange(len(sample_offsets(table)) - 1), 2)
    offsets = sample_offsets(table)
    for kind in FORMATS:
        for name, half in zip("ab", halves, strict=True):
            start, stop = int(offsets[half[0]]), int(offsets[half[-1] + 1])
            batch = batch_of([]).with_data(table.slice(start, stop - start))
            write(kind, root / kind, [_named(batch, name)], on_materialize_error="warn", materialize=False)
    return root, table


def _named(batch: Any, name: str) -> Any:
    return type(batch)(batch.data, (), name)


@pytest.mark.parametrize("kind", FORMATS)
def test_odd_samples_are_the_same_in_each_format(kind: str, odd: tuple[Path, pa.Table]) -> None:
    root, table = odd
    path = root / kind / "items.lance" if kind == "lance" else root / kind
    dataset = InterleavedDataset(path, seed=5)
    found = list(dataset)
    assert {one["sample_id"]: plain(one) for one in found} == expected(table)
    assert [one["sample_id"] for one in dataset] != [one["sample_id"] for one in found]  # the next epoch
    assert len(found) == dataset.epoch_length == len(dataset)

    whole = {one["sample_id"]: repr(one) for one in found}
    again = pickle.loads(  # noqa: S301 (its own)
        pickle.dumps(InterleavedDataset(path, shuffle=False))
    )
    for at in reversed(range(0, dataset.epoch_length, 5)):
        (one,) = again.fetch(3, np.array([at]))
        assert repr(one) == whole[one["sample_id"]]


@settings(max_examples=12)  # each writes a tar
@given(table=tables())
def test_any_table_is_told_by_its_tar(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Columns of any type, items without content, bytes that are no image."""
    folder = tmp_path_factory.mktemp("any")
    batch = batch_of([]).with_data(table)
    write("webdataset", folder, [_named(batch, "p")], on_materialize_error="warn", materialize=False)
    try:
        told = expected(read("webdataset", folder))
    except (ValueError, OverflowError):  # of nanoseconds and far years, for which Python has no type
        reject()
    assert {one["sample_id"]: plain(one) for one in documents(folder)} == told


def test_json_that_says_null_is_no_value(tmp_path: Path) -> None:
    """Of a tar that declares no types, and beside an object with the name that wraps what JSON cannot say."""
    table = pa.Table.from_pylist([item("s")], INTERLEAVED_SCHEMA)
    for name, text in (("nothing", "null"), ("similar", '{"__arrow__":1,"b":2}')):
        table = table.append_column(json_field(name), pa.array([text]))
    write("webdataset", tmp_path / "tars", [batch_of([]).with_data(table)])
    (document,) = documents(tmp_path / "tars")
    assert document["metadata"] == {"nothing": None, "similar": {"__arrow__": 1, "b": 2}}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Three partitions of five samples with two images each, as tars and Parquet."""
    for partition in range(3):
        rows = []
        for number in range(5):
            name = f"s{partition}{number}"
            rows += [
                item(name),
                item(name, 0, text_content=f"text of {name}", content_type="text/plain"),
                item(name, 1, "image", binary_content=png(partition, number), content_type="image/png"),
                item(name, 2, "image", binary_content=png(number, 9), content_type="image/png"),
            ]
        for kind in ("webdataset", "parquet"):
            write(kind, tmp_path / kind, [batch_of(rows, partition=f"p{partition}")])
    return tmp_path


def png(red: int, green: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (red, green, 7)).save(file, "PNG")
    return file.getvalue()


def ids(path: Any, **options: Any) -> list[str]:
    return [one["sample_id"] for one in documents(path, **options)]


def test_a_tar_without_an_index_is_scanned(storage: Path) -> None:
    tars = storage / "webdataset"
    indexed = documents(tars, seed=2)
    for index in tars.glob("*.idx"):
        index.unlink()
    assert documents(tars, seed=2) == indexed
    assert ids(tars / "p1.tar", shuffle=False) == [f"s1{number}" for number in range(5)]
    assert ids(f"{tars}/p[02].tar", shuffle=False)[5] == "s20"


def test_the_place_of_the_data_does_not_count(storage: Path) -> None:
    """A state is good for a copy of the data, and for no other data."""
    moved = storage / "elsewhere"
    (storage / "webdataset").rename(moved)
    dataset = InterleavedDataset(moved)
    next(iter(dataset))
    (moved / "p1.tar").rename(moved / "p7.tar")
    (moved / "p1.tar.idx").rename(moved / "p7.tar.idx")
    with pytest.raises(DataError, match="of another order"):
        InterleavedDataset(moved).load_state_dict(dataset.state_dict())


def test_images_are_decoded(storage: Path) -> None:
    for one in documents(storage / "webdataset", decode="pil"):
        first, second = [each["image"] for each in one["items"] if each["modality"] == "image"]
        partition, number = int(one["sample_id"][1]), int(one["sample_id"][2])
        assert (first.size, first.mode, first.getpixel((2, 1))) == ((3, 2), "RGB", (partition, number, 7))
        assert second.getpixel((0, 0)) == (number, 9, 7)


def test_a_transform_sees_each_sample(storage: Path) -> None:
    dataset = InterleavedDataset(storage / "parquet", transform=lambda one: one["sample_id"], shuffle=False)
    assert list(dataset)[:3] == ["s00", "s01", "s02"]
    assert next(iter(dataset.loader(4))) == ["s00", "s01", "s02", "s03"]


def write_plan(folder: Path, rows: list[tuple[Any, ...]]) -> None:
    names = ("sample_id", "shard", "offset", "bytes", "split", "repeats")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "plan.parquet")


def planned(storage: Path, kind: str) -> Path:
    """A plan of two splits. Of the first tar s00 never comes, s01 once, s04 four times."""
    folder, rows = storage / kind, []
    for partition in range(3):
        offsets = [0] * 6
        if kind == "webdataset":
            with tarfile.open(folder / f"p{partition}.tar") as tar:
                members = tar.getmembers()
            offsets = [member.offset for member in members[::3]]
            offsets.append(members[-1].offset_data + (members[-1].size + 511) // 512 * 512)
        for number, (start, stop) in enumerate(pairwise(offsets)):
            split = "validation" if partition == 2 else "train"
            repeats = number if partition == 0 else 1
            file = f"p{partition}{format_of(kind).written}"
            rows.append((f"s{partition}{number}", file, start, stop - start, split, repeats))
    rows.append(("dropped", None, None, None, "train", 0))
    write_plan(folder, rows)
    for index in folder.glob("*.idx"):
        index.unlink()
    return folder


@pytest.mark.parametrize("kind", ["webdataset", "parquet"])
def test_a_plan_tells_splits_and_repeats(kind: str, storage: Path) -> None:
    folder = planned(storage, kind)
    train = [f"s0{number}" for number in range(5) for _ in range(number)] + [f"s1{n}" for n in range(5)]
    validation = [f"s2{number}" for number in range(5)]
    assert sorted(ids(folder, split="train")) == sorted(train)
    assert ids(folder, split="validation", shuffle=False) == validation
    with pytest.raises(DataError, match="splits train, validation: name one, as split=.train"):
        InterleavedDataset(folder)
    with pytest.raises(DataError, match="no split 'test', but train, validation"):
        InterleavedDataset(folder, split="test")


def test_a_plan_of_one_split_needs_no_name(storage: Path) -> None:
    write_plan(storage / "parquet", [(f"s0{n}", "p0.parquet", 0, 0, "train", n) for n in range(5)])
    expected_ids = [f"s0{n}" for n in range(5) for _ in range(n)]
    assert sorted(ids(storage / "parquet")) == sorted(ids(storage / "parquet", split="train")) == expected_ids


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training set in three formats."""
    root = tmp_path_factory.mktemp("sets")
    make_source(root / "web", "web")
    recipe = Recipe(splits={"train": 0.8, "validation": 0.2}, shards=4)
    for kind in ("webdataset", "parquet", "arrow_cache"):
        training_set(root / kind, kind).make([source(root / "web")], recipe, Here())
    return root


@pytest.mark.parametrize("split", [None, "train"])
@pytest.mark.parametrize(
    "part",
    [
        "webdataset/train-*.tar",
        "webdataset/train-000000.tar",
        "parquet/train",
        "parquet/train/train-000000.parquet",
        "arrow_cache/train",
        "arrow_cache/train/train-000000",
    ],
)
def test_a_part_of_a_training_set_is_refused(part: str, split: str | None, sets: Path) -> None:
    """Alone it would have neither the repeats nor the splits of the plan."""
    folder = sets / part.partition("/")[0]
    assert ids(folder, split="train")
    with pytest.raises(DataError, match=f"{folder}: name that folder, and split='train'"):
        InterleavedDataset(sets / part, split=split)


def test_shards_are_refused_from_above_their_set(storage: Path) -> None:
    folder = planned(storage, "webdataset")
    (storage / "above").mkdir()
    folder.rename(storage / "above" / "set")
    (storage / "above" / "set" / ".training").mkdir()
    with pytest.raises(DataError, match="of the training set .*above/set: name that folder"):
        InterleavedDataset(storage / "above")


def test_a_file_that_is_called_like_a_plan_is_data(storage: Path) -> None:
    folder = storage / "parquet"
    (folder / "p2.parquet").rename(folder / "plan.parquet")
    assert len(ids(folder / "*.parquet")) == 15


@pytest.mark.parametrize("kind", ["webdataset", "parquet", "arrow_cache"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_training_set_that_is_not_complete_is_refused(
    kind: str, is_named: bool, sets: Path, tmp_path: Path
) -> None:
    """As a run leaves it that was killed: notes on shards, and no plan."""
    folder = tmp_path / "set"
    shutil.copytree(sets / kind, folder, ignore=shutil.ignore_patterns("plan.parquet"))
    part = folder / ("train-000000.tar" if kind == "webdataset" else "train")
    with pytest.raises(DataError, match=f"{folder}: this .* is not complete: run mm-assets reshard again"):
        InterleavedDataset(folder if is_named else part)


def test_a_plan_of_other_data_is_refused(storage: Path) -> None:
    folder = storage / "parquet"
    write_plan(folder, [("s00", "p0.parquet", 0, 0, "train", 1)])
    with pytest.raises(DataError, match=r"plan\.parquet: a plan of 1 samples, and there are 5"):
        InterleavedDataset(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../webdataset/p0.tar",
        "a/../../webdataset/p0.tar",
        "{storage}/webdataset/p0.tar",
        "file://{storage}/webdataset/p0.tar",
        "..\\p0.tar",
        "a/b/p0.tar",
        "./p0.tar",
        "*.tar",
        "p0.tar::x.tar",
        "p0.tar/",
        "nothing",
    ],
)
def test_a_plan_names_files_beside_it_alone(name: str, storage: Path) -> None:
    folder = planned(storage, "webdataset")
    rows = pq.read_table(folder / "plan.parquet").to_pylist()
    rows[0]["shard"] = name.format(storage=storage)
    plan = storage / "copy"
    for place in (plan, folder):  # beside its tars, too
        place.mkdir(exist_ok=True)
        write_plan(place, [tuple(row.values()) for row in rows])
        with pytest.raises(DataError, match=r"plan\.parquet: '.*' is no shard as mm-assets "):
            InterleavedDataset(place)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("bytes", 1 << 45, r"sample 's00': its bytes are not in .*p0\.tar"),
        ("bytes", 0, r"sample 's00': its bytes are not in .*p0\.tar"),
        ("offset", (1 << 63) - 1, r"sample 's00': its bytes are not in .*p0\.tar"),
        ("offset", -512, "sample 's00': a negative number in column offset"),
        ("offset", None, "sample 's00': no number in column offset"),
        ("repeats", -1, "sample 's00': a negative number in column repeats"),
        ("repeats", 1 << 40, f"sample 's00' comes {1 << 40} times"),
        ("offset", "0", "not the plan of a training set: offset is of string"),
        ("shard", 7, "'7' is no shard as mm-assets reshard names them"),
        ("repeats", [1], "not the plan of a training set: repeats is of list"),
    ],
)
def test_a_row_that_cannot_be_is_named(column: str, value: Any, words: str, storage: Path) -> None:
    folder = planned(storage, "webdataset")
    plan = pq.read_table(folder / "plan.parquet")
    is_typed = type(value) in (int, type(None)) and column != "shard"
    values = [value, *(plan.column(column).to_pylist()[1:] if is_typed else [value] * (len(plan) - 1))]
    at = plan.schema.get_field_index(column)
    pq.write_table(plan.set_column(at, column, pa.array(values)), folder / "plan.parquet")
    with pytest.raises(DataError, match=rf"plan\.parquet: {words}"):
        InterleavedDataset(folder, split=plan.column("split")[0].as_py())


def test_repeats_cost_no_memory(storage: Path) -> None:
    """Each of 4 million runs with numbers of its own would be 600 MB."""
    folder = planned(storage, "webdataset")
    rows = pq.read_table(folder / "plan.parquet").to_pylist()
    rows[4]["repeats"] = 4_000_000
    rows = [row | {"split": "train"} for row in rows]
    write_plan(folder, [tuple(row.values()) for row in rows])
    tracemalloc.start()
    dataset = InterleavedDataset(folder, shuffle=False)
    (last,) = dataset.fetch(0, np.array([4_000_005]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert dataset.epoch_length == 4_000_000 + 0 + 1 + 2 + 3 + 10
    assert last["sample_id"] == "s04" and len(dataset.order_digest) == 32
    assert peak < 250 << 20


def test_paired_tars(tmp_path: Path) -> None:
    """What `MultiModalWebDataset` gives, by position."""
    urls: dict[str, list[str]] = {"images": [], "texts": []}
    for shard in range(3):
        for name, members in (
            ("images", [(f"k{shard}{n}.png", png(shard, n)) for n in range(4)]),
            ("texts", [(f"k{shard}{n}.txt", f"text {n}".encode()) for n in reversed(range(4))]),
        ):
            urls[name].append(str(make_tar(tmp_path / name / f"{shard}.tar", members)))
    dataset = InterleavedDataset(urls, seed=1)
    found = list(dataset)
    assert sorted(one["__key__"] for one in found) == [f"k{shard}{n}" for shard in range(3) for n in range(4)]
    for one in found:
        assert one["png"] == png(int(one["__key__"][1]), int(one["__key__"][2]))
        assert one["txt"] == f"text {one['__key__'][2]}".encode()

    loader = InterleavedDataset(urls, seed=1).loader(2)
    first = next(iter(loader))
    resumed = InterleavedDataset(urls, seed=1, rank=1, world_size=2)
    resumed.load_state_dict(loader.state_dict())
    other = InterleavedDataset(urls, seed=1, rank=0, world_size=2)
    other.load_state_dict(loader.state_dict())
    keys = [one["__key__"] for one in [*first, *resumed, *other]]
    assert sorted(keys) == sorted(one["__key__"] for one in found)

    make_tar(tmp_path / "texts" / "2.tar", [("k20.txt", b"x")])
    with pytest.raises(DataError, match="key mismatch across modalities"):
        InterleavedDataset(urls)


def cut(tars: Path) -> None:
    data = (tars / "p0.tar").read_bytes()
    (tars / "p0.tar").write_bytes(data[:1500])


def other_index(tars: Path) -> None:
    index = np.frombuffer((tars / "p0.tar.idx").read_bytes(), "<u8").copy()
    index[1] += 512
    (tars / "p0.tar.idx").write_bytes(index.tobytes())


def no_index(tars: Path) -> None:
    (tars / "p0.tar.idx").write_bytes(b"short")


def not_ours(tars: Path) -> None:
    make_shards(tars / "raw", members=1, pdf=0, samples=2)


def broken_json(tars: Path) -> None:
    data = (tars / "p0.tar").read_bytes()
    (tars / "p0.tar").write_bytes(data.replace(b'"texts":', b'"texts"!'))


def lost_image(tars: Path) -> None:
    data = (tars / "p0.tar").read_bytes()
    (tars / "p0.tar").write_bytes(data.replace(b'"images":[null,"1.png"', b'"images":[null,"8.png"'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, r"p0\.tar: the file ends before sample \d"),
        (other_index, r"p0\.tar: sample 0: byte \d+: a member ends behind its sample"),
        (no_index, r"p0\.tar\.idx: no index of a tar"),
        (not_ours, r"sample \d: not in our layout"),
        (broken_json, r"p0\.tar: sample \d: its json cannot be read"),
        (lost_image, r"p0\.tar: sample \d: sample 's0\d' is damaged: KeyError\('8\.png'\)"),
    ],
)
def test_damage_is_named(damage: Any, words: str, storage: Path) -> None:
    damage(storage / "webdataset")
    with pytest.raises(MmAssetsError, match=words):
        documents(storage / "webdataset")


def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    rows = [item("s"), item("s", 4, "image", binary_content=png(1, 2)[:-30], content_type="image/png")]
    write("webdataset", tmp_path, [batch_of(rows, partition="p")])
    with pytest.raises(DataError, match=r"sample 's', position 4: "):
        documents(tmp_path, decode="pil")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"split": "train"}, DataError, "no plan.parquet here"),
        ({"decode": "numpy"}, ValueError, "decode is None, 'pil' or 'tensor'"),
        ({"window": 0}, ValueError, "window is a number of shards"),
        ({"cache_bytes": "much"}, ValueError, "not a size in bytes"),
    ],
)
def test_arguments_that_are_refused(options: Any, error: Any, words: str, storage: Path) -> None:
    with pytest.raises(error, match=words):
        InterleavedDataset(storage / "webdataset", **options)
    with pytest.raises(FileNotFoundError):
        InterleavedDataset(storage / "nothing")


def test_an_empty_tar_is_named(storage: Path) -> None:
    """Its index was not emptied with it, so that nobody has looked into it yet."""
    tar = storage / "webdataset" / "p1.tar"
    assert tar.with_name("p1.tar.idx").exists()
    tar.write_bytes(b"")
    with pytest.raises(DataError, match=r"p1\.tar: the file is empty: it was cut"):
        documents(storage / "webdataset")
