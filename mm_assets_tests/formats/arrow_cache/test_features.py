"""Features: their Arrow types, values in and out, and their fingerprint."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PILImage

from mm_assets.formats import (
    Array3D,
    ArrowCache,
    ClassLabel,
    Features,
    Image,
    Sequence,
    Value,
    Video,
    cache_fingerprint,
    decode_example,
    encode_example,
    validate_sharded_cache,
    write_sharded_arrow_cache,
)
from mm_assets.formats.arrow_cache import features_fingerprint
from mm_assets.formats.arrow_cache.features import features_of

ALL = Features(
    {
        "value": Value("int32"),
        "label": ClassLabel(names=["cat", "dog"]),
        "image": Image(),
        "array": Array3D(shape=(2, 3, 4), dtype="float32"),
        "list": Sequence(Value("int64")),
        "labels": Sequence(ClassLabel(num_classes=3)),
        "nested": Sequence(Sequence(Value("string"))),
        "video": Video(),
    }
)


def encoded(feature: Any, value: Any) -> Any:
    return encode_example({"field": value}, Features({"field": feature}))["field"]


def file_of(image: PILImage.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def noise(mode: str = "RGB", size: int = 32) -> PILImage.Image:
    pixels = np.random.default_rng(5).integers(0, 256, (size, size, 3), np.uint8)
    return PILImage.fromarray(pixels).convert(mode)


def test_arrow_schema() -> None:
    assert ALL.to_arrow_schema() == pa.schema(
        [
            ("value", pa.int32()),
            ("label", pa.int64()),
            ("image", pa.large_binary()),
            ("array", pa.large_binary()),
            ("list", pa.list_(pa.int64())),
            ("labels", pa.list_(pa.int64())),
            ("nested", pa.list_(pa.list_(pa.string()))),
            ("video", pa.string()),
        ]
    )
    with pytest.raises(TypeError, match="'x'"):
        Features({"x": "int32"}).to_arrow_schema()  # type: ignore[dict-item]


def test_every_kind_comes_back_from_a_cache(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    example = {
        "value": np.int64(7),
        "label": "dog",
        "image": np.asarray(noise()),
        "array": array,
        "list": np.arange(3),
        "labels": ("2", 0, None),
        "nested": [["a", None], [], ["b"]],
        "video": Path("clips") / "one.mp4",
    }
    write_sharded_arrow_cache([("one", example), ("none", dict.fromkeys(ALL))], ALL, tmp_path / "cache")
    row, nothing = ArrowCache(tmp_path / "cache", ALL)
    assert nothing == dict.fromkeys(ALL)
    assert np.array_equal(np.asarray(row.pop("image")), example["image"])
    found = row.pop("array")
    assert found.dtype == np.float32 and np.array_equal(found, array) and found.flags.writeable
    assert row == {
        "value": 7,
        "label": 1,
        "list": [0, 1, 2],
        "labels": [2, 0, None],
        "nested": [["a", None], [], ["b"]],
        "video": "clips/one.mp4",
    }


def test_jpeg_bytes_and_files_are_taken_as_they_are(tmp_path: Path) -> None:
    data = file_of(noise(), "JPEG")
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    assert [encoded(Image(), value) for value in (data, bytearray(data), path, str(path))] == [data] * 4
    assert encoded(Image(), None) is None
    with pytest.raises(ValueError, match="field 'field': no picture: int"):
        encoded(Image(), 5)


def test_an_opened_jpeg_keeps_its_quality_and_exif() -> None:
    exif = PILImage.Exif()
    exif[0x0112] = 6  # orientation
    data = file_of(noise(), "JPEG", quality=97, subsampling=0, exif=exif)
    again = PILImage.open(io.BytesIO(encoded(Image(), PILImage.open(io.BytesIO(data)))))
    assert again.format == "JPEG" and again.getexif()[0x0112] == 6
    assert again.quantization == PILImage.open(io.BytesIO(data)).quantization  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_an_opened_picture_of_another_format_keeps_format_and_pixels(kind: str) -> None:
    opened = PILImage.open(io.BytesIO(file_of(noise(), kind)))
    again = PILImage.open(io.BytesIO(encoded(Image(), opened)))
    assert again.format == kind and np.array_equal(np.asarray(again), np.asarray(opened))


def in_mode(mode: str) -> PILImage.Image:
    image = noise(mode)
    image.format = "TIFF"
    return image


@pytest.mark.parametrize(
    "make",
    [
        noise,
        lambda: np.asarray(noise()),
        lambda: in_mode("RGBA"),
        lambda: in_mode("P"),
        lambda: in_mode("LA"),
    ],
)
def test_pictures_without_format_or_with_alpha_become_png(make: Callable[[], Any]) -> None:
    picture = make()
    again = PILImage.open(io.BytesIO(encoded(Image(), picture)))
    assert again.format == "PNG" and np.array_equal(np.asarray(again), np.asarray(picture))


def test_labels() -> None:
    label = ClassLabel(names=["cat", "dog"])
    assert (label.num_classes, label.str2int("dog"), label.int2str(0)) == (2, 1, "cat")
    assert (label.str2int(["dog", "cat"]), label.int2str([1, 0])) == ([1, 0], ["dog", "cat"])
    assert ClassLabel(num_classes=3).names == ["0", "1", "2"]
    assert [encoded(label, value) for value in ("dog", 1, np.int16(0), True, -1, None)] == [
        1,
        1,
        0,
        1,
        -1,
        None,
    ]
    for wrong in (
        lambda: ClassLabel(),
        lambda: ClassLabel(num_classes=3, names=["a"]),
        lambda: ClassLabel(names=["a", "a"]),
    ):
        with pytest.raises(ValueError, match="ClassLabel"):
            wrong()
    for wrong in (lambda: label.str2int("cow"), lambda: label.int2str(2), lambda: label.int2str(-1)):
        with pytest.raises(ValueError, match="class"):
            wrong()


def test_arrays() -> None:
    array = Array3D(shape=(1, 2, 3), dtype="uint8")
    assert encoded(array, [[[1, 2, 3], [4, 5, 6]]]) == bytes([1, 2, 3, 4, 5, 6])
    assert encoded(array, np.array([[[1.0, 2, 3], [4, 5, 6]]])) == bytes([1, 2, 3, 4, 5, 6])
    assert encoded(Array3D((None, 1, 1), "int16"), np.arange(2).reshape(2, 1, 1)) == b"\0\0\1\0"
    features = Features({"a": Array3D((None, 1, 1), ">i4")})
    assert decode_example(encode_example({"a": np.arange(3).reshape(3, 1, 1)}, features), features)[
        "a"
    ].ravel().tolist() == [0, 1, 2]
    for wrong in (np.zeros((2, 1, 3)), np.zeros(6), np.full((1, 2, 3), 300), np.full((1, 2, 3), 0.5)):
        with pytest.raises(ValueError, match="field 'field': (an array of shape|values of)"):
            encoded(array, wrong)
    for arguments in (
        {"shape": (1, 2)},
        {"shape": (1, None, 2)},
        {"shape": (None, 0, 8)},
        {"shape": (1, 1, -1)},
        {"shape": (1, 1, 1), "dtype": "O"},
    ):
        with pytest.raises(ValueError, match="Array3D"):
            Array3D(**arguments)  # type: ignore[arg-type]


def test_values_and_lists() -> None:
    assert (
        encoded(Value("float32"), np.float64(0.5)) == 0.5 and type(encoded(Value("int8"), np.int8(3))) is int
    )
    assert encoded(Sequence(Value("int8")), (1, np.int16(2))) == [1, 2]
    with pytest.raises(ValueError, match="int33"):
        Value("int33")
    with pytest.raises(ValueError, match="a list was expected, not str"):
        encoded(Sequence(Value("string")), "text")
    with pytest.raises(TypeError, match="int32"):
        Sequence("int32")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="None"):
        Value(None)  # type: ignore[arg-type]


VARIANTS = [
    Features({"a": Value("int32")}),
    Features({"b": Value("int32")}),
    Features({"a": Value("int64")}),
    Features({"a": ClassLabel(names=[str(i) for i in range(6)])}),
    Features({"a": ClassLabel(names=["0", "1", "2", "3", "5", "4"])}),
    Features({"a": ClassLabel(names=[str(i) for i in range(7)])}),
    Features({"a": Array3D((1, 2, 3))}),
    Features({"a": Array3D((1, 3, 2))}),
    Features({"a": Array3D((1, 2, 3), "int8")}),
    Features({"a": Image()}),
    Features({"a": Video()}),
    Features({"a": Sequence(Value("int32"))}),
    Features({"a": Sequence(Value("int64"))}),
    Features({"a": Value("int32"), "b": Image()}),
    Features({"b": Image(), "a": Value("int32")}),
]


def test_every_definition_is_in_the_fingerprint() -> None:
    assert len({features_fingerprint(features) for features in VARIANTS}) == len(VARIANTS)
    assert all(features_of(features.definition()) == features for features in [*VARIANTS, ALL])


def test_other_features_are_refused(tmp_path: Path) -> None:
    write_sharded_arrow_cache([(0, {"a": 1})], VARIANTS[0], tmp_path / "cache")
    for features in VARIANTS[1:]:
        with pytest.raises(ValueError, match="Schema fingerprint mismatch"):
            validate_sharded_cache(tmp_path / "cache", features)
        with pytest.raises(ValueError, match="Schema fingerprint mismatch"):
            ArrowCache(tmp_path / "cache", features)


def test_fingerprints_are_the_same_in_another_process() -> None:
    code = (
        "from mm_assets.formats import *; from mm_assets.formats.arrow_cache import "
        "features_fingerprint\n"
        "f = Features({'a': ClassLabel(names=['x', 'y']), 'b': Sequence(Array3D((1, 2, 3)))})\n"
        "print(features_fingerprint(f), cache_fingerprint('C', '1', 'd', 'train', source=['s'], features=f))"
    )
    runs = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_the_cache_is_named_after_its_data() -> None:
    plain = cache_fingerprint("Photos", "1.0.0", "small", "train")
    assert plain == "photos_small_train_8e1f1e3834937b05"
    names = [
        plain,
        cache_fingerprint("Photos", "1.0.1", "small", "train"),
        cache_fingerprint("Photos", "1.0.0", "small", "train", source="ab"),
        cache_fingerprint("Photos", "1.0.0", "small", "train", source=b"\xab"),
        cache_fingerprint("Photos", "1.0.0", "small", "train", source=["ab"]),
        cache_fingerprint("Photos", "1.0.0", "small", "train", source=["a", "b"]),
        *(cache_fingerprint("Photos", "1.0.0", "small", "train", features=features) for features in VARIANTS),
    ]
    assert len(set(names)) == len(names)
    assert all(name.startswith("photos_small_train_") and len(name) == len(plain) for name in names)
    with pytest.raises(ValueError, match="file name"):
        cache_fingerprint("Photos", "1.0.0", "../x", "train")


def test_importing_the_room_imports_no_heavy_library() -> None:
    code = (
        "import sys, mm_assets.formats; print([m for m in ('numpy', 'pyarrow', 'PIL', 'webdataset', "
        "'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
