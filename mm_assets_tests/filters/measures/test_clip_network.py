"""Networks over the CLIP embedding: exact values, files that are refused, and what is measured again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_assets.filters.clip import ClipEmbedding
from mm_assets.filters.clip_network import ClipNetwork, Network
from mm_assets.filters.condition import ImageCondition
from mm_assets.filters.measure import MeasureFileError, column_of
from mm_assets.filters.measures import selected_measures
from mm_assets.filters.scores import ImageScores, score_table
from mm_assets.settings import Settings
from mm_assets_tests.filters.filter_sets import png, sample
from mm_assets_tests.filters.measures.test_clip import libraries as libraries
from mm_assets_tests.filters.measures.test_clip import model_folder
from mm_assets_tests.formats.datasets import table_of

TYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def weights_file(
    tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, kind: str = "F32"
) -> bytes:
    """The bytes of a safetensors file."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    body = b""
    for name, values in tensors.items():
        if kind == "BF16":
            data = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = np.asarray(values, TYPES[kind]).tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": list(np.shape(values)), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


TWO = {
    "layers.10.weight": [[1.0, -2.0, 0.5]],
    "layers.10.bias": [0.25],
    "layers.2.weight": [[1, 0], [0, 1], [1, 1]],
    "layers.2.bias": [0, 0, -1],
}
ONE = {"linear.weight": [[2.0, -1.0]]}


def answers(content: bytes, *vectors: list[float]) -> list[float]:
    return Network.of(content, "net")(np.array(vectors, np.float64)).tolist()


@pytest.mark.parametrize("kind", ["F16", "F32", "F64", "BF16"])
def test_exact_values(kind: str) -> None:
    vectors = [0.5, -1.0], [1.0, 2.0]
    # layers.2 gives (0.5, -1, -1.5) and (1, 2, 2)
    assert answers(weights_file(TWO, {"activation": "relu"}, kind), *vectors) == [0.75, -1.75]
    assert answers(weights_file(TWO, {"activation": "identity"}, kind), *vectors) == [2.0, -1.75]
    assert answers(weights_file(ONE, None, kind), *vectors) == [2.0, 0.0]
    assert answers(weights_file(ONE, {"output": "sigmoid"}, kind), [0.0, 0.0], [0.0, -1e4]) == [0.5, 1.0]


def test_layers_are_in_the_order_of_their_numbers() -> None:
    assert list(TWO) != sorted(TWO)
    assert Network.of(weights_file(TWO, {"activation": "relu"}), "net").inputs == 2


def altered(content: bytes, **fields: Any) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["linear.weight"] |= fields
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


STATED = "net: its metadata must state activation, one of identity, relu, and may state output"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "net: damaged: no safetensors file"),
        (b"\x80\x04pickle", "net: damaged: no safetensors file"),
        (b"\xff" * 8 + b"{}", "net: damaged: no safetensors file"),
        (weights_file({}), "net: the last layer must have one output"),
        (weights_file(TWO), STATED),
        (weights_file(TWO, {"activation": "gelu"}), STATED),
        (weights_file(ONE, {"output": ["x"]}), STATED),
        (weights_file({"a.weight": [[1.0], [2.0]]}), "net: the last layer must have one output"),
        (weights_file({"a.weight": [1.0]}), "net: a.weight must be there, with outputs x inputs"),
        (weights_file({"a.bias": [1.0]}), "net: a.weight must be there"),
        (weights_file({**ONE, "linear.bias": [1.0, 2.0]}), "net: linear.bias must have 1 numbers"),
        (weights_file({**ONE, "linear.scale": [1.0]}), "net: linear.scale is no weight or bias"),
        (
            weights_file({"0.weight": [[1.0], [1.0]], "1.weight": [[1.0]]}, {"activation": "relu"}),
            "net: 1.weight takes 1 numbers, the layer before it gives 2",
        ),
        (weights_file({"a.weight": [[float("nan")]]}), "net: a.weight has numbers that are not finite"),
        (weights_file(ONE)[:-1], "net: damaged: linear.weight does not fit its place in the file"),
        (altered(weights_file(ONE), dtype="I64"), "net: linear.weight is of type 'I64', not F16, F32"),
        (altered(weights_file(ONE), shape=[1, 3]), "net: damaged: linear.weight does not fit"),
        (altered(weights_file(ONE), shape=[1, 1 << 40]), "net: damaged: linear.weight does not fit"),
        (altered(weights_file(ONE), shape="12"), "net: damaged: linear.weight does not fit"),
        (altered(weights_file(ONE), data_offsets=[-4, 4]), "net: damaged: linear.weight does not fit"),
        (altered(weights_file(ONE), data_offsets=[0, 1 << 60]), "net: damaged: linear.weight does not fit"),
        (
            altered(weights_file(ONE), shape=[1, 2] + [1] * 63),
            "net: linear.weight has 65 dimensions, at most 2",
        ),
        (altered(weights_file(ONE), shape=[1] * 9 + [2]), "net: linear.weight has 10 dimensions, at most 2"),
        (
            altered(weights_file({"a.weight": [[1.0, 2.0]], **ONE}), data_offsets=[4, 12]),
            "net: damaged: a.weight and linear.weight are at the same place in the file",
        ),
        (
            altered(weights_file({"a.weight": [[1.0, 2.0]], **ONE}), data_offsets=[0, 8]),
            "net: damaged: a.weight and linear.weight are at the same place in the file",
        ),
        (
            weights_file(ONE).replace(b'"dtype": "F32", "shape"', b'"dtype": "F32", "dtype"'),
            "net: damaged: its header has 'dtype' twice",
        ),
        (
            weights_file({**ONE, "tinear.weight": [[1.0, 2.0]]}).replace(b"tinear", b"linear"),
            "net: damaged: its header has 'linear.weight' twice",
        ),
        (altered(weights_file(ONE), data_offsets=[0]), "net: damaged: linear.weight does not fit"),
    ],
)
def test_files_that_are_refused(content: bytes, line: str) -> None:
    with pytest.raises(MeasureFileError, match=f"^{re.escape(line)}"):
        Network.of(content, "net")


@pytest.fixture
def networks(tmp_path: Path, libraries: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network "taste" of vectors of two numbers."""
    monkeypatch.setenv("MM_CLIP_MODEL", str(model_folder(tmp_path / "model")))
    file = tmp_path / "taste.safetensors"
    file.write_bytes(weights_file(ONE))
    monkeypatch.setenv("MM_CLIP_NETWORKS", f"taste={file} safe={file}")
    return file


def taste() -> tuple[ClipEmbedding, ClipNetwork]:
    embedding, network = selected_measures(["taste"]).images
    assert isinstance(embedding, ClipEmbedding)
    assert isinstance(network, ClipNetwork)
    return embedding, network


def test_a_score_is_made_of_the_stored_embedding_and_no_image_is_read(networks: Path) -> None:
    table = table_of([*sample("a", png(4, 4), png(5, 4)), *sample("b", None, png(6, 4))])
    embedding, network = taste()
    plain = score_table(table)
    vectors = pa.array([[0.5, -1.0], None, None, [1.0, 0.25]], embedding.type)
    stored = plain.append_column(column_of(embedding), vectors)
    stored = stored.append_column("decode_error", pa.nulls(4, pa.string()))
    stored = stored.select(ImageScores.schema([embedding]).names).cast(ImageScores.schema([embedding]))
    without_bytes = table.drop(["binary_content"])
    scored = score_table(without_bytes, [embedding, network], ImageScores(stored))
    assert scored.column("taste").to_pylist() == [2.0, None, None, 1.75]
    assert scored.column("clip_embedding").combine_chunks().equals(vectors)
    # Other weights measure again, the same ones do not.
    known = ImageScores(scored)
    assert known.missing([embedding, network]) == []
    networks.write_bytes(weights_file({"linear.weight": [[1.0, 0.0]]}))
    _, other = taste()
    assert known.missing([embedding, other]) == [other]
    again = score_table(without_bytes, [embedding, other], known)
    assert again.column("taste").to_pylist() == [0.5, None, None, 1.0]


def test_values_do_not_depend_on_what_is_measured_beside_them(networks: Path) -> None:
    _, network = taste()
    vectors = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
    together = network.measure_all(list(vectors))
    assert together == [network.measure_all([vector])[0] for vector in vectors]


def test_the_weights_are_looked_at_where_they_are_used(networks: Path) -> None:
    _, network = taste()
    with pytest.raises(
        MeasureFileError, match="takes vectors of 2 numbers, clip_embedding has 3: it was made"
    ):
        network.measure_all([np.zeros(3, np.float32)])
    networks.write_bytes(weights_file({"linear.weight": [[3.0, 0.0]]}))
    with pytest.raises(MeasureFileError, match="another content here than where the run was planned$"):
        ClipNetwork("other", network.model, "0" * 32, network.file).measure_all([np.zeros(2, np.float32)])


def test_networks_are_named_in_conditions_and_where_they_lie_does_not_count(
    networks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ImageCondition("taste > 5 and safe < 0.1").needs() == ("safe", "taste")
    before = column_of(taste()[1])
    assert str(tmp_path) not in repr(before.metadata)
    moved = networks.rename(tmp_path / "moved.safetensors")
    monkeypatch.setenv("MM_CLIP_NETWORKS", f"taste={moved}")
    assert column_of(taste()[1]).equals(before, check_metadata=True)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("taste", "MM_CLIP_NETWORKS: 'taste': write name=file, in lower-case letters"),
        ("Taste=x", "MM_CLIP_NETWORKS: 'Taste=x': write name=file, in lower-case letters"),
        ("width=x", "MM_CLIP_NETWORKS: 'width=x': the score width is there already"),
        ("language=x", "MM_CLIP_NETWORKS: 'language=x': the score language is there already"),
        ("stopwords=x", "MM_CLIP_NETWORKS: 'stopwords=x': the score stopwords is there already"),
        ("a=x a=y", "MM_CLIP_NETWORKS: 'a=y': the score a is there already"),
        ("a=/nowhere/x", "MM_CLIP_NETWORKS: /nowhere/x: no such file or folder"),
    ],
)
def test_settings_that_cannot_be_used(
    setting: str, line: str, networks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MM_CLIP_NETWORKS", setting)
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        Settings.load({"MM_SCORES": "a"})


def test_a_large_file_is_refused(networks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with networks.open("r+b") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(MeasureFileError, match="taste.safetensors: it has more than 64 MiB$"):
        taste()
