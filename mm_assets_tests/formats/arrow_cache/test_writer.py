"""What comes in comes out: shards, metadata, batches, and what is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from PIL import Image as PILImage

from mm_assets.formats import (
    ArrowCache,
    ClassLabel,
    Features,
    Image,
    Sequence,
    Value,
    cache_fingerprint,
    read_shard,
    read_sharded_cache_meta,
    validate_sharded_cache,
    write_sharded_arrow_cache,
)
from mm_assets_tests.formats.arrow_cache.caches import build

NUMBERS = Features({"x": Value("int32"), "label": ClassLabel(names=["a", "b"])})


def numbers(count: int) -> Iterator[tuple[int, dict[str, int]]]:
    for i in range(count):
        yield i, {"x": i, "label": i % 2}


def batch_rows(shard: Path) -> list[int]:
    reader = ipc.open_file(str(shard))
    return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]


def test_shards_turn_over_when_their_batches_reach_the_size(tmp_path: Path) -> None:
    # A batch of ten rows has 120 bytes: nine of them reach 1024.
    meta = write_sharded_arrow_cache(
        numbers(100), NUMBERS, tmp_path / "cache", shard_size_bytes=1024, batch_size=10
    )
    assert meta.shard_filenames == ["shard-00000.arrow", "shard-00001.arrow"]
    assert (meta.num_rows, meta.num_shards, meta.shard_row_counts) == (100, 2, [90, 10])
    assert sorted(path.name for path in meta.cache_dir.iterdir()) == ["_metadata.json", *meta.shard_filenames]
    assert [x for path in meta.shard_paths for x in read_shard(path)["x"].to_pylist()] == list(range(100))
    assert list(tmp_path.iterdir()) == [meta.cache_dir]


def test_no_shard_is_empty(tmp_path: Path) -> None:
    meta = write_sharded_arrow_cache(
        numbers(20), NUMBERS, tmp_path / "cache", shard_size_bytes=1, batch_size=10
    )
    assert meta.shard_row_counts == [10, 10]


def test_the_metadata_file(tmp_path: Path) -> None:
    meta = write_sharded_arrow_cache(
        numbers(25), NUMBERS, tmp_path / "deep" / "cache", shard_size_bytes=100, batch_size=10
    )
    content = json.loads((meta.cache_dir / "_metadata.json").read_text())
    assert content == {
        "cache_format_version": 1,
        "schema_fingerprint": meta.schema_fingerprint,
        "num_rows": 25,
        "num_shards": 3,
        "shard_row_counts": [10, 10, 5],
        "shard_filenames": ["shard-00000.arrow", "shard-00001.arrow", "shard-00002.arrow"],
        "shard_size_target_bytes": 100,
        "shard_sizes": [path.stat().st_size for path in meta.shard_paths],
        "shard_digests": meta.shard_digests,
        "features": {
            "x": {"_type": "Value", "dtype": "int32"},
            "label": {"_type": "ClassLabel", "names": ["a", "b"]},
        },
    }
    assert (
        read_sharded_cache_meta(str(meta.cache_dir))
        == meta
        == validate_sharded_cache(meta.cache_dir, NUMBERS)
    )


def test_no_examples_give_no_shards(tmp_path: Path) -> None:
    meta = write_sharded_arrow_cache(iter([]), NUMBERS, tmp_path / "cache")
    assert (meta.num_rows, meta.num_shards, meta.shard_filenames) == (0, 0, [])
    assert validate_sharded_cache(tmp_path / "cache", NUMBERS) == meta
    cache = ArrowCache(tmp_path / "cache", NUMBERS)
    assert (len(cache), list(cache), list(cache.batches())) == (0, [], [])
    with pytest.raises(IndexError):
        cache[0]


def test_a_shard_is_memory_mapped(tmp_path: Path) -> None:
    meta = build(tmp_path / "cache")
    before = pa.total_allocated_bytes()
    table = read_shard(str(meta.shard_paths[0]))
    assert table["data"].nbytes > 1000 and pa.total_allocated_bytes() == before


def test_a_batch_ends_before_its_bytes_exceed_the_bound(tmp_path: Path) -> None:
    sizes = [400, 400, 400, 5000, 10, 900, 200]
    features = Features({"data": Image()})
    pairs = ((i, {"data": bytes(size)}) for i, size in enumerate(sizes))
    meta = write_sharded_arrow_cache(pairs, features, tmp_path / "cache", max_batch_bytes=1000)
    assert batch_rows(meta.shard_paths[0]) == [
        2,
        1,
        1,
        2,
        1,
    ]  # the large one alone; what waits has a few bytes more than its data


def test_the_bytes_of_views_count(tmp_path: Path) -> None:
    buffer = bytes(400_000)
    pairs = ((i, {"data": memoryview(buffer)[i:]}) for i in range(8))
    meta = write_sharded_arrow_cache(
        pairs, Features({"data": Value("binary")}), tmp_path / "cache", max_batch_bytes=1_000_000
    )
    assert batch_rows(meta.shard_paths[0]) == [2] * 4


@pytest.mark.parametrize("feature", [Value("binary"), Value("large_binary"), Sequence(Value("binary"))])
def test_a_buffer_can_be_used_again(tmp_path: Path, feature: Any) -> None:
    buffer = bytearray(4)

    def examples() -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (letter, given) in enumerate(zip(b"abc", (buffer, memoryview(buffer), buffer), strict=True)):
            buffer[:] = bytes([letter]) * 4
            yield i, {"data": [given] if isinstance(feature, Sequence) else given}

    write_sharded_arrow_cache(examples(), Features({"data": feature}), tmp_path / "cache")
    found = [row["data"] for row in ArrowCache(tmp_path / "cache")]
    assert [one[0] if isinstance(one, list) else one for one in found] == [b"aaaa", b"bbbb", b"cccc"]


def test_numbers_in_lists_count_with_what_they_take_in_memory(tmp_path: Path) -> None:
    features = Features({"list": Sequence(Value("float32"))})
    pairs = ((i, {"list": np.zeros(1000, np.float32)}) for i in range(10))
    meta = write_sharded_arrow_cache(pairs, features, tmp_path / "cache", max_batch_bytes=100_000)
    assert batch_rows(meta.shard_paths[0]) == [2] * 5


def test_columns_of_pictures_hold_more_than_2_gib() -> None:
    assert Features({"image": Image()}).to_arrow_schema() == pa.schema([("image", pa.large_binary())])


@pytest.mark.parametrize("values", [[None, b"x", None, b"", b"yz"], [None, None], [b""]])
def test_missing_pictures_stay_null(tmp_path: Path, values: list[bytes | None]) -> None:
    features = Features({"data": Image(), "number": Value("int8")})
    pairs = ((i, {"data": value, "number": None}) for i, value in enumerate(values))
    meta = write_sharded_arrow_cache(pairs, features, tmp_path / "cache")
    table = read_shard(meta.shard_paths[0])
    table.validate(full=True)
    assert table.to_pydict() == {"data": values, "number": [None] * len(values)}
    assert list(ArrowCache(tmp_path / "cache", decode=False)) == [
        {"data": value, "number": None} for value in values
    ]


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"x": 1}, r"example 'bad': missing field\(s\) \['label'\]"),
        ({"x": 1, "label": 0, "y": 2}, r"example 'bad': unexpected field\(s\) \['y'\]"),
        ({"x": 1, "label": "c"}, "example 'bad': field 'label': 'c' is none of the 2 classes"),
        ({"x": 1, "label": 2}, "example 'bad': field 'label': 2 is not the number of a class"),
        ({"x": 1, "label": 0.5}, "example 'bad': field 'label': "),
        ({"x": 1 << 40, "label": 0}, "example 'bad', field 'x': .*1099511627776"),
        ({"x": "one", "label": 0}, "example 'bad', field 'x': .*'one'"),
        ({"x": np.arange(3), "label": 0}, "example 'bad': field 'x': "),
        ([("x", 1), ("label", 0)], "example 'bad': a mapping of fields was expected, not list"),
        (None, "example 'bad': a mapping of fields was expected, not NoneType"),
    ],
)
def test_an_example_that_does_not_fit_is_named_and_nothing_is_left(
    tmp_path: Path, example: Any, message: str
) -> None:
    pairs = [("good", {"x": 0, "label": 0}), ("bad", example), ("good", {"x": 0, "label": 0})]
    with pytest.raises(ValueError, match=message):
        write_sharded_arrow_cache(iter(pairs), NUMBERS, tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            [{"x": 1, "label": 0}],
            "not dict: where examples have no keys, give enumerate(examples)",
        ),  # of two fields: no pair
        (iter([{"x": 1}]), "not dict: where examples have no keys, give enumerate(examples)"),
        (
            [("key", {"x": 1, "label": 0}, "more")],
            "not tuple of 3: where examples have no keys, give enumerate(examples)",
        ),
        (["ab"], "not str: where examples have no keys, give enumerate(examples)"),
        ({"key": {"x": 1, "label": 0}}, "not str: where examples have no keys, give enumerate(examples)"),
        (lambda: iter(()), "must be an iterable of (key, example) pairs, not function: call it"),
        (None, "must be an iterable of (key, example) pairs, not NoneType"),
    ],
)
def test_a_generator_without_keys_is_refused_with_what_to_give(
    tmp_path: Path, items: Any, message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        write_sharded_arrow_cache(items, NUMBERS, tmp_path / "cache")
    assert str(caught.value).startswith("the generator must ") and str(caught.value).endswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given", [{"x": Value("int32")}, {"x": "int32"}, pa.schema([("x", pa.int32())]), ["x"]]
)
def test_features_of_another_kind_are_refused_wherever_they_are_given(tmp_path: Path, given: Any) -> None:
    write_sharded_arrow_cache([("key", {"x": 1, "label": 0})], NUMBERS, tmp_path / "cache")
    uses: list[Callable[[], object]] = [
        lambda: write_sharded_arrow_cache([("key", {"x": 1})], given, tmp_path / "other"),
        lambda: ArrowCache(tmp_path / "cache", given),
        lambda: validate_sharded_cache(tmp_path / "cache", given),
        lambda: cache_fingerprint("Pets", "1", "small", "train", features=given),
    ]
    for use in uses:
        with pytest.raises(
            TypeError,
            match=re.escape('must be Features({"caption": Value("string"), ...}) of mm_assets.formats, not '),
        ):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_picture_that_is_not_there_names_its_example(tmp_path: Path) -> None:
    pairs = [("gone", {"image": tmp_path / "gone.png"})]
    with pytest.raises(FileNotFoundError, match=r"gone\.png") as caught:
        write_sharded_arrow_cache(pairs, Features({"image": Image()}), tmp_path / "cache")
    assert caught.value.__notes__ == ["in example 'gone'"]


def test_a_picture_that_cannot_be_saved_names_its_example(tmp_path: Path) -> None:
    photoshop = PILImage.new("RGB", (2, 2))
    photoshop.format = "PSD"  # Pillow reads these, but does not write them
    for picture in (
        photoshop,
        PILImage.new("CMYK", (2, 2)),
        PILImage.new("F", (2, 2)),
        np.zeros((2, 2), np.float32),
    ):
        with pytest.raises(
            ValueError,
            match="example 'odd': field 'image': a picture of mode (RGB|CMYK|F) cannot be saved as (PSD|PNG)",
        ):
            write_sharded_arrow_cache(
                [("odd", {"image": picture})], Features({"image": Image()}), tmp_path / "cache"
            )


def test_a_generator_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[int, dict[str, int]]]:
        yield from numbers(50)
        raise RuntimeError("intentional")

    for expected in ([], [tmp_path / "cache"]):
        with pytest.raises(RuntimeError, match="intentional") as caught:
            write_sharded_arrow_cache(
                failing(), NUMBERS, tmp_path / "cache", shard_size_bytes=100, batch_size=3
            )
        held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert not any(str(tmp_path) in file for file in held), (
            caught
        )  # though the error still holds the writer
        assert list(tmp_path.iterdir()) == expected
        meta = write_sharded_arrow_cache(numbers(5), NUMBERS, tmp_path / "cache")
    assert sorted(path.name for path in meta.cache_dir.iterdir()) == ["_metadata.json", *meta.shard_filenames]


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"shard_size_bytes": 0}, {"max_batch_bytes": 0}, {"max_batch_bytes": 1 << 31}],
)
def test_sizes_that_make_no_sense(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        write_sharded_arrow_cache(numbers(1), NUMBERS, tmp_path / "cache", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one feature"):
        write_sharded_arrow_cache(iter([]), Features(), tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []
