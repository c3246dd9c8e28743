"""The training loops of ``examples/``: every sample exactly once, its items in order, however often it
stops.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets_tests.clients.environment import FORMATS, ROOT, clients_bin, convert, run
from mm_assets_tests.formats.raw_tars import make_tar
from tools.demo import make_shards

pytestmark = pytest.mark.clients

Sample = tuple[str, tuple[Any, ...]]  # id; texts, and (width, height, digest) of pictures
Run = tuple[Sequence[str | Path], dict[str, str]]  # arguments, environment

DRIVER = Path(__file__).with_name("open_with") / "example_samples.py"
TWO_NODES = [{"RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]


def given_in_turn(name: str, *runs: Run) -> list[list[list[Any]]]:
    """What the training loop of an example was given in each of several runs, one after the other in one
    process: to start it takes longer than a run. The counts that each run printed must agree.
    """
    as_text = json.dumps([[list(map(str, arguments)), env] for arguments, env in runs])
    given_each: list[list[list[Any]]] = []
    count = 0
    for line in run([clients_bin("python"), DRIVER, name, as_text], PYTHONPATH=str(ROOT)).splitlines():
        if found := re.fullmatch(r"(?:epoch \d+: )?(\d+) samples, \d+ samples/s", line):
            count += int(found[1])
        elif line.startswith("["):
            given_each.append(list(chain.from_iterable(json.loads(line))))
            assert count == len(given_each[-1])
            count = 0
    assert len(given_each) == len(runs)
    return given_each


def plain(samples: Iterable[list[Any]]) -> list[Sample]:
    return [
        (sample_id, tuple(item if isinstance(item, str) else tuple(item) for item in items))
        for sample_id, items, _ in samples
    ]


def picture(data: bytes) -> tuple[int, int, str]:
    with Image.open(io.BytesIO(data)) as image:
        return (*image.size, hashlib.sha256(image.convert("RGB").tobytes()).hexdigest())


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4 + number, 5), (number, 2, 3)).save(file, "PNG")
    return file.getvalue()


def from_parquet(folder: Path) -> list[Sample]:
    """Samples as their rows say, items by position, a text before the picture of its position; in order of
    their ids.
    """
    samples: dict[str, list[Any]] = {}
    for row in chain.from_iterable(
        pq.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))
    ):
        items = samples.setdefault(row["sample_id"], [])
        if row["modality"] == "text":
            items.append((row["position"], 0, row["text_content"]))
        elif row["modality"] == "image":
            items.append((row["position"], 1, picture(row["binary_content"])))
    return [
        (sample_id, tuple(item for *_, item in sorted(items))) for sample_id, items in sorted(samples.items())
    ]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each format, of both raw layouts and of documents that are long, empty, or have two items
    at one position.
    """
    root = tmp_path_factory.mktemp("outputs")
    make_shards(root / "raw", members=4, pdf=2, samples=9)
    odd: list[tuple[str, Any]] = [
        (
            "long.json",
            {"texts": [None, *"abcdefghijk"], "images": ["long.0.png", *[None] * 10, "long.11.png"]},
        ),
        ("long.0.png", png(1)),
        ("long.11.png", png(2)),
        ("text.json", {"texts": ["only"], "images": [None]}),
        ("empty.json", {"texts": [], "images": []}),
        ("both.json", {"texts": ["first", "third"], "images": ["both.0.png", None]}),
        ("both.0.png", png(3)),
    ]
    make_tar(root / "raw" / "odd.tar", odd)
    for name in (*FORMATS, "arrow_cache"):
        convert(root / "raw", root / name, name)
    return root


@pytest.fixture(scope="module")
def truth(outputs: Path) -> list[Sample]:
    samples = from_parquet(outputs / "parquet")
    assert len(samples) == 6 * 9 + 4
    found = dict(samples)
    assert found["long"] == (picture(png(1)), *"abcdefghijk", picture(png(2)))
    assert found["both"] == ("first", picture(png(3)), "third")
    return samples


@pytest.fixture(scope="module")
def modalities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample]]:
    """Five trios of tars, keys in another order in each modality; and what the samples are."""
    root, samples = tmp_path_factory.mktemp("modalities"), []
    for shard in range(5):
        members: dict[str, list[tuple[str, Any]]] = {"images": [], "texts": [], "embeddings": []}
        for number in range(3):
            key = f"s{shard}_{number}"
            pictures = {place: png(10 * shard + number + place) for place in (0, 2, 10)}
            texts = {place: f"{key} at {place}" for place in (1, 9, 11)}
            members["images"] += [(f"{key}.{place}.png", data) for place, data in reversed(pictures.items())]
            members["texts"][:0] = [(f"{key}.{place}.txt", text.encode()) for place, text in texts.items()]
            array = io.BytesIO()
            np.save(array, np.full(4, 10 * shard + number, np.float32))
            members["embeddings"].append((f"{key}.emb.npy", array.getvalue()))
            items = sorted(
                [*texts.items(), *((place, picture(data)) for place, data in pictures.items())],
                key=lambda item: item[0],
            )
            samples.append((key, tuple(item for _, item in items)))
        for name, found in members.items():
            make_tar(root / name / f"{shard:04d}.tar", found)
    return root, samples


KINDS = ("webdataset", "arrow_cache", "parquet", "lance")


@pytest.fixture(scope="module")
def loaded(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Sample]]]:
    """What ``interleaved_loader.py`` gives: of each kind in two epochs of one node, and in one of two; of a
    mixture; and stopped on three nodes out of step, resumed on two, then on one.
    """
    saved = tmp_path_factory.mktemp("saved")
    runs: dict[str, list[Run]] = {}
    for kind in KINDS:
        nodes: list[Run] = [([outputs / kind, "--seed", "3", "--workers", "0"], node) for node in TWO_NODES]
        runs[kind] = [([outputs / kind, "--seed", "3", "--epochs", "2"], {}), *nodes]
    runs["mixture"] = [([outputs / "webdataset", outputs / "parquet", "--weights", "3", "1"], {})]
    arguments = [outputs / "webdataset", "--seed", "3", "--batch-size", "3"]
    three_nodes = [{"RANK": rank, "WORLD_SIZE": "3"} for rank in "012"]
    runs["resumed"] = [
        ([*arguments, "--save", saved / "a", "--workers", str(at), "--stop-after", str(3 * at + 3)], node)
        for at, node in enumerate(three_nodes)
    ]
    runs["resumed"] += [
        ([*arguments, "--resume", saved / "a", "--save", saved / "b", "--stop-after", "5"], node)
        for node in TWO_NODES
    ]
    runs["resumed"] += [([*arguments, "--resume", saved / "b", "--workers", "3", "--epochs", "2"], {})]
    found = map(plain, given_in_turn("interleaved_loader", *chain.from_iterable(runs.values())))
    return {name: list(islice(found, len(of_name))) for name, of_name in runs.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_interleaved_every_sample_once(
    kind: str, loaded: dict[str, list[list[Sample]]], truth: list[Sample]
) -> None:
    samples, *of_nodes = loaded[kind]
    first, second = samples[: len(truth)], samples[len(truth) :]
    assert sorted(first) == sorted(second) == truth
    assert first != second
    assert sorted(of_nodes[0] + of_nodes[1]) == truth
    assert abs(len(of_nodes[0]) - len(of_nodes[1])) <= 1


def test_interleaved_resumes_on_other_nodes_and_workers(
    loaded: dict[str, list[list[Sample]]], truth: list[Sample]
) -> None:
    """Exactly the rest, and then the next epoch."""
    *parts, rest = loaded["resumed"]
    assert [len(part) for part in parts] == [3, 6, 9, 6, 6]
    rest, over = rest[: -len(truth)], rest[-len(truth) :]
    assert sorted([*chain.from_iterable(parts), *rest]) == truth
    assert sorted(over) == truth


def test_a_mixture_of_two_datasets(loaded: dict[str, list[list[Sample]]], truth: list[Sample]) -> None:
    (found,) = loaded["mixture"]
    assert len(found) == 2 * len(truth)
    counts = Counter(found)
    assert set(counts) == set(truth)
    assert set(counts.values()) <= {1, 2, 3}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_tiny_model_learns_and_goes_on(nodes: int, outputs: Path, tmp_path: Path) -> None:
    """Two epochs, stopped and resumed; with two processes, in step by gloo."""
    script = ROOT / "examples" / "tiny_vlm.py"
    start: list[str | Path] = [clients_bin("python")]
    if nodes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nodes)]
    command = [*start, script, outputs / "webdataset", "--save", tmp_path]
    printed = run([*command, "--stop-after", "3"], PYTHONPATH=str(ROOT)) + run(command, PYTHONPATH=str(ROOT))
    found = re.findall(r"epoch (\d): (\d+) steps, mean loss ([\d.]+)", printed)
    assert [epoch for epoch, _, _ in found] == ["0", "0", "1"]
    steps = [int(count) for _, count, _ in found]
    assert steps[0] + steps[1] == steps[2]
    assert float(found[2][2]) < float(found[0][2])


def test_paired_every_sample_once(modalities: tuple[Path, list[Sample]]) -> None:
    folder, truth = modalities
    samples, *nodes = given_in_turn(
        "paired_loader", ([folder], {}), *(([folder, "--epochs", "2"], node) for node in TWO_NODES)
    )
    assert sorted(plain(samples)) == truth
    assert {sample_id: embedding for sample_id, _, embedding in samples} == {
        key: [float(key[1:2] + key[3:])] * 4 for key, _ in truth
    }

    assert sorted(plain(nodes[0] + nodes[1])) == sorted([*truth, *truth])
    assert all(len(node) < 2 * len(truth) for node in nodes)


def test_lance_every_sample_once(outputs: Path, truth: list[Sample], tmp_path: Path) -> None:
    """In another order; of a table with a replaced partition, whose fragments come last, then, while others
    have rows that are gone; and of samples that lie across the batches of 8,192 rows in which ids are read:
    one of these, of eleven rows each, begins in the first and ends in the second.
    """
    raw, replaced = tmp_path / "raw", tmp_path / "replaced"
    make_shards(raw, members=3, pdf=0, samples=4)
    for turn in range(2):
        convert(raw, replaced, "lance")
        if turn == 0:
            make_tar(raw / "web-00001.tar", [("new.json", {"texts": ["new"], "images": [None]})])
    convert(raw, tmp_path / "parquet", "parquet")
    texts = [f"text {place}" for place in range(10)]
    make_tar(
        tmp_path / "long.tar",
        [(f"{number:04d}.json", {"texts": texts, "images": []}) for number in range(800)],
    )
    convert(tmp_path / "long.tar", tmp_path / "long", "lance")

    table, here = outputs / "lance" / "items.lance", ["--workers", "0"]
    samples, of_process, of_replaced, of_long = map(
        plain,
        given_in_turn(
            "lance_loader",
            ([table, "--epochs", "2", "--seed", "5"], {}),
            ([table, *here, "--seed", "5"], {}),
            ([replaced / "items.lance", *here], {}),
            ([tmp_path / "long" / "items.lance", *here, "--batch-size", "50"], {}),
        ),
    )
    first, second = samples[: len(truth)], samples[len(truth) :]
    assert sorted(first) == sorted(second) == truth
    assert first != second
    assert of_process == first
    assert len(of_replaced) == 9 and sorted(of_replaced) == from_parquet(tmp_path / "parquet")
    assert sorted(of_long) == [(f"{number:04d}", tuple(texts)) for number in range(800)]


_REFUSED = """
import json, os, runpy, sys
for script, folder, environment in json.loads(sys.argv[1]):
    sys.argv = [script, folder]
    os.environ.update(environment)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        print(f"{type(error).__name__}:", *str(error).split())
"""


def test_what_cannot_be_trained_from_is_refused(
    outputs: Path, modalities: tuple[Path, list[Sample]], tmp_path: Path
) -> None:
    """A rank without data; and tars that do not pair."""
    for name in ("images", "texts", "embeddings"):
        make_tar(tmp_path / name / "0000.tar", [("a.emb.npy" if name == "embeddings" else "b.0.txt", b"")])
    first, last = {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "99", "WORLD_SIZE": "100"}
    runs: list[tuple[str, Path, dict[str, str], str]] = [
        (
            "interleaved_loader",
            outputs / "webdataset",
            last,
            r"DataError: .*: 58 samples for 100 ranks and batches of 4: a rank would have none\. .*",
        ),
        (
            "paired_loader",
            modalities[0],
            last,
            r"DataError: .*DataError: rank 99 of 100 has no shard: .* none of the 5 shards\. .*",
        ),
        ("paired_loader", tmp_path, first, r"DataError: .*key mismatch across modalities.*"),
    ]
    asked = [(str(ROOT / "examples" / f"{name}.py"), str(place), node) for name, place, node, _ in runs]
    told = run([clients_bin("python"), "-c", _REFUSED, json.dumps(asked)], PYTHONPATH=str(ROOT))
    lines = [line for line in told.splitlines() if line.startswith(("SystemExit", "DataError"))]
    for line, (*_, pattern) in zip(lines, runs, strict=True):
        assert re.fullmatch(pattern, line)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("interleaved_loader", "webdataset"),
        ("lance_loader", "lance/items.lance"),
        ("paired_loader", ""),
    ],
)
def test_the_scripts_run_by_url(
    name: str,
    folder: str,
    outputs: Path,
    truth: list[Sample],
    modalities: tuple[Path, list[Sample]],
) -> None:
    """As their users start them: in a spawned worker, what they define is in another module than here.

    `pathlib.Path` would take a slash away from a URL.
    """
    place, samples = (outputs / folder, truth) if folder else modalities
    script = ROOT / "examples" / f"{name}.py"
    printed = run([clients_bin("python"), script, f"file://{place}", "--workers", "1"], PYTHONPATH=str(ROOT))
    assert f"{len(samples)} samples, " in printed.splitlines()[-1]
