"""Measures by a CLIP model, without one: settings, folders that are refused, pictures and texts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mm_assets.filters.clip import (
    MOST_TEXTS,
    ClipEmbedding,
    ClipModelError,
    ClipSimilarity,
    PictureSettings,
    middle_square,
    model_identity,
    picture_settings,
    texts_to_compare,
)
from mm_assets.filters.measure import column_of
from mm_assets.filters.measures import selected_measures
from mm_assets.graph import Plan, ShardSet, digest
from mm_assets.graph.planned_jobs import readable_settings
from mm_assets.model.errors import MissingExtra
from mm_assets.settings import Settings

TENSORS = ("logit_scale", "text_projection.weight", "visual_projection.weight")
CONFIG = {"model_type": "clip", "text_config": {}, "vision_config": {"image_size": 32}}


def safetensors(*names: str, filling: bytes = b"\0" * 64) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in names})
    return len(header).to_bytes(8, "little") + header.encode() + filling


def model_folder(folder: Path) -> Path:
    """The files of a model, as far as they are looked at before it is loaded."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(*TENSORS))
    return folder


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that fail when they are imported: to plan, it is enough that they are there."""
    for name in ("torch", "transformers"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("raise AssertionError('loaded to plan')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")


def test_the_setting_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MM_CLIP_MODEL", raising=False)
    line = (
        "score 'clip_similarity': set MM_CLIP_MODEL, or clip_model in mm_assets.toml, "
        "to the folder of a CLIP model"
    )
    with pytest.raises(ValueError) as error:
        Settings.load({"MM_MIN_CLIP_SIMILARITY": "0.2"})
    assert str(error.value) == line
    with pytest.raises(ValueError, match="score 'clip_embedding': set MM_CLIP_MODEL"):
        Settings.load({"MM_SCORES": "clip_embedding"})


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_library_is_one_line(
    missing: str, tmp_path: Path, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MM_CLIP_MODEL", str(model_folder(tmp_path / "model")))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra) as error:
        selected_measures(["clip_similarity"])
    assert str(error.value) == f"CLIP needs {missing}: pip install 'mm-assets[clip]'"


def test_the_measures_travel_with_the_folder_but_do_not_depend_on_it(
    tmp_path: Path, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for place in ("here", "there"):
        folder = model_folder(tmp_path / place)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MM_CLIP_MODEL", place)
        measures = selected_measures(["clip_similarity", "clip_embedding"]).images
        assert [measure.folder for measure in measures] == [str(folder)] * 2  # type: ignore[attr-defined]
        plan = Plan(ShardSet("curated_parquet", ()), measures)
        published = (
            [column_of(measure) for measure in measures],
            [column_of(measure).metadata for measure in measures],
            readable_settings("1", plan, {}),
        )
        assert place not in repr(published)
        found.append((measures, published, plan.digest()))
    assert found[0] == found[1]


def test_a_changed_file_is_another_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    first = model_identity(str(folder))
    (folder / "README.md").write_text("words")
    assert model_identity(str(folder)) == first
    seen = {first}
    for name, content in (
        ("model.safetensors", safetensors(*TENSORS, filling=b"\0" * 63 + b"\1")),
        ("config.json", json.dumps({**CONFIG, "projection_dim": 8}).encode()),
        ("tokenizer.json", b"[]"),
        ("preprocessor_config.json", b'{"size": 40, "crop_size": 32}'),
    ):
        (folder / name).write_bytes(content)
        seen.add(model_identity(str(folder)))
    assert len(seen) == 5
    columns = [column_of(ClipSimilarity(model)).metadata for model in seen]
    assert len({repr(column) for column in columns}) == 5


DEEP = b'{"a": ' * 5000 + b"1" + b"}" * 5000


def without(name: str) -> dict[str, bytes | None]:
    return {name: None}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (without("config.json"), "{folder}: no CLIP model: config.json is missing"),
        ({"config.json": b"{"}, "{folder}/config.json: no JSON"),
        ({"config.json": b"[]"}, "{folder}/config.json: must be an object"),
        (
            {"config.json": b'{"model_type": "siglip"}'},
            "{folder}/config.json: model_type is 'siglip': no model of the class CLIPModel",
        ),
        (without("model.safetensors"), "{folder}: no weights: model.safetensors is missing"),
        (
            {"model.safetensors": None, "pytorch_model.bin": b"\x80\4."},
            "{folder}: no model.safetensors, and pickles such as pytorch_model.bin are never loaded: "
            "save the model again with save_pretrained()",
        ),
        ({"model.safetensors": b"\x80\4."}, "{folder}/model.safetensors: damaged: no safetensors file"),
        ({"model.safetensors": b"\xff" * 64}, "{folder}/model.safetensors: damaged: no safetensors file"),
        (
            {"model.safetensors": safetensors("weight")},
            "{folder}/model.safetensors: no weights of a CLIPModel: logit_scale is missing",
        ),
        (
            {
                "model.safetensors": None,
                "model.safetensors.index.json": b'{"weight_map": {"a": "../a.safetensors"}}',
            },
            "{folder}/model.safetensors.index.json: '../a.safetensors' is no file of this folder",
        ),
        (without("tokenizer.json"), "{folder}: no tokenizer: tokenizer.json, or vocab.json and merges.txt"),
        (
            {"preprocessor_config.json": b'{"size": {"height": 32, "width": 32}}'},
            "{folder}/preprocessor_config.json: pictures of this model are no middle square of 32 pixels",
        ),
        (
            {"processor_config.json": b'{"image_processor": {"do_center_crop": false}}'},
            "{folder}/processor_config.json: do_center_crop is false: no preparation of CLIP",
        ),
        ({"config.json": DEEP}, "{folder}/config.json: nested too deep"),
        (
            {"config.json": b'{"model_type": ' + b"[" * 900 + b"]" * 900 + b"}"},
            "{folder}/config.json: model_type is [[[[[[[...]]]]]]]: no model of the class CLIPModel",
        ),
        ({"preprocessor_config.json": DEEP}, "{folder}/preprocessor_config.json: nested too deep"),
        (
            {"model.safetensors": len(DEEP).to_bytes(8, "little") + DEEP},
            "{folder}/model.safetensors: damaged: its header is nested too deep",
        ),
        (
            {
                "model.safetensors": None,
                "model.safetensors.index.json": b'{"weight_map": {"a": ["b"], "c": 1}}',
            },
            "{folder}/model.safetensors.index.json: '1' is no file of this folder",
        ),
    ],
)
def test_a_folder_that_does_not_work_is_one_line(
    changes: dict[str, bytes | None],
    line: str,
    tmp_path: Path,
    libraries: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = model_folder(tmp_path / "model")
    for name, content in changes.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
    monkeypatch.setenv("MM_CLIP_MODEL", str(folder))
    with pytest.raises(ClipModelError) as error:
        Settings.load({"MM_SCORES": "clip_embedding"})
    assert str(error.value).startswith(f"MM_CLIP_MODEL: {line.format(folder=folder)}")
    assert "\n" not in str(error.value)


def test_a_pipe_among_the_files_is_not_read(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ClipModelError, match="config.json: a named pipe, not a regular file"):
        model_identity(str(folder))


def test_a_missing_folder_is_one_line(
    tmp_path: Path, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mm_assets.toml").write_text('clip_model = "nowhere"\nscores = ["clip_embedding"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MM_CLIP_MODEL", raising=False)
    with pytest.raises(ClipModelError) as error:
        Settings.load()
    assert str(error.value) == f"mm_assets.toml: clip_model: {tmp_path}/nowhere: no such folder"


def test_weights_in_several_files(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    parts = {"1.safetensors": TENSORS[:2], "2.safetensors": TENSORS[2:]}
    for name, tensors in parts.items():
        (folder / name).write_bytes(safetensors(*tensors))
    index = {"weight_map": {tensor: name for name, tensors in parts.items() for tensor in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    first = model_identity(str(folder))
    (folder / "2.safetensors").write_bytes(safetensors(*TENSORS[2:], filling=b"\1" * 64))
    assert model_identity(str(folder)) != first


def test_what_a_model_sees_of_a_picture(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    published = PictureSettings()
    assert picture_settings(str(folder)) == PictureSettings(32, 32, published.mean, published.std, 3)
    given = {
        "size": {"shortest_edge": 40},
        "crop_size": {"height": 32, "width": 32},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.5, 1],
        "resample": 2,
    }
    expected = PictureSettings(40, 32, (0.5, 0.5, 0.5), (0.25, 0.5, 1), 2)
    (folder / "preprocessor_config.json").write_text(json.dumps(given))
    assert picture_settings(str(folder)) == expected
    shutil.move(folder / "preprocessor_config.json", folder / "other.json")
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": given}))
    assert picture_settings(str(folder)) == expected


@pytest.mark.parametrize("size", [(640, 480), (31, 97), (224, 224), (100, 30), (225, 224)])
def test_the_middle_square_is_that_of_the_scaled_picture(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8)
    width, height = size
    short = min(size)
    scaled = (int(224 * width / short), int(224 * height / short))
    left, top = (scaled[0] - 224) // 2, (scaled[1] - 224) // 2
    whole = np.asarray(Image.fromarray(pixels).resize(scaled, Image.Resampling.BICUBIC))
    expected = whole[top : top + 224, left : left + 224]
    found = middle_square(pixels, PictureSettings())
    assert found.shape == (224, 224, 3)
    off = np.abs(found.astype(int) - expected.astype(int))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01


def test_a_very_long_picture_costs_no_more() -> None:
    """Scaled as a whole it would be 224 x 22,400,000 pixels."""
    pixels = np.zeros((1, 100_000, 3), np.uint8)
    pixels[:, 50_000:] = 255
    found = middle_square(pixels, PictureSettings())
    assert found.shape == (224, 224, 3)
    assert found[0, 0, 0] < 128 <= found[0, -1, 0]  # the edge in the middle


def test_texts_are_stripped_and_few() -> None:
    assert texts_to_compare([" a\n", "", "  ", "b", "a"]) == ["a", "b"]
    assert texts_to_compare([]) == []
    many = texts_to_compare(str(number) for number in range(10_000))
    assert (len(many), many[0], many[1], many[-1]) == (MOST_TEXTS, "0", "39", "9960")
    (cut,) = texts_to_compare(["x" * 10_000_000])
    assert len(cut) < 20_000


def test_types_are_those_that_parquet_returns() -> None:
    """The digest of scores counts them."""
    assert column_of(ClipEmbedding()).type.field(0).name == "element"
    assert column_of(ClipSimilarity()).type == pa.float64()
    assert digest(ClipSimilarity("m", "here")) == digest(ClipSimilarity("m", "there"))
    assert digest(ClipSimilarity("m")) != digest(ClipSimilarity("n"))
