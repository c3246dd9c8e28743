"""Filters of what benchmarks have."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.filters import FilterSettingError
from mm_assets.filters.contamination import Benchmark, KnownItems, word_hashes
from mm_assets.filters.registry import FILTERS, chain_of, filters_of
from mm_assets_tests.filters.filter_sets import sample
from mm_assets_tests.formats.datasets import batch_of
from mm_assets_tests.formats.raw_tars import make_tar

QUESTION = " ".join(f"word{number}" for number in range(20))


def benchmark(folder: Path, *questions: dict[str, object]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "mmlu.jsonl").write_text("".join(f"{json.dumps(question)}\n" for question in questions))
    return str(folder / "mmlu.jsonl")


def known(location: str, length: int = 13) -> KnownItems:
    return KnownItems(Benchmark.of(location, length).read())


def test_texts_that_share_words_in_a_row_are_found(tmp_path: Path) -> None:
    found = known(
        benchmark(
            tmp_path,
            {"id": "q1", "question": QUESTION, "choices": ["never mind", "what is seen by nobody at all"]},
            {"id": "q2", "texts": ["the capital of France is Paris"]},
        )
    )

    def item(text: str) -> str | None:
        hit = found.text(word_hashes(text, 13))
        return None if hit is None else hit[0]

    thirteen = " ".join(QUESTION.split()[3:16])
    assert item(f"so: {thirteen.upper()}, said he") == "mmlu/1"
    assert item(" ".join(QUESTION.split()[3:15])) is None  # 12 words
    assert item("what is seen by nobody at all?") == "mmlu/1"  # short ones as a whole
    assert item("They say what is seen by nobody at all") is None
    assert item("The capital of France is Paris.") == "mmlu/2"
    assert item("never mind") is None  # too common
    assert item("") is None


def jpeg(seed: int, side: int = 256, quality: int = 90) -> bytes:
    """A picture of broad strokes."""
    light = np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)
    data = io.BytesIO()
    picture = Image.fromarray(light).resize((side, side), Image.Resampling.BICUBIC)
    picture.convert("RGB").save(data, "JPEG", quality=quality)
    return data.getvalue()


def test_chain_names_benchmark_and_item(tmp_path: Path) -> None:
    """An image by its picture, a document by one of its texts; documents of others stay."""
    texts = benchmark(tmp_path, {"id": "q1", "question": QUESTION})
    document = {"texts": [None, "a caption"], "images": ["x.jpg", None]}
    make_tar(tmp_path / "mmmu.tar", [("x.json", document), ("x.jpg", jpeg(1))])
    filters = filters_of(FILTERS, {"decontaminate": (texts, str(tmp_path / "mmmu.tar"))})
    chain = chain_of(filters)
    assert chain is not None
    chain = chain.fitted({}, (), str(tmp_path))

    result = chain(
        batch_of(
            [
                *sample("leak", f"Answer this: {QUESTION}", jpeg(2)),
                *sample("seen", "some text", jpeg(1, side=200, quality=50), jpeg(3)),
                *sample("clean", "another text", jpeg(4)),
            ]
        )
    )

    lost = {(loss.sample_id, loss.position): (loss.kind, loss.reason) for loss in result.losses}
    assert lost == {
        ("leak", -1): ("decontaminate_texts", "a text of its sample: in mmlu.jsonl: mmlu/1"),
        ("leak", 0): ("decontaminate_texts", "in mmlu.jsonl: mmlu/1"),
        ("leak", 1): ("decontaminate_texts", "a text of its sample: in mmlu.jsonl: mmlu/1"),
        ("seen", 1): ("decontaminate_images", "in mmmu.tar: x [0]"),
    }
    assert {file.name for file in tmp_path.glob("*.benchmark.parquet")} == {
        f"{each.digest}.benchmark.parquet" for judge in chain.filters for each in judge.benchmarks
    }


def test_a_folder_of_pictures_is_named_by_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "bench" / "pics"
    folder.mkdir(parents=True)
    (folder / "same.jpg").write_bytes(jpeg(1))
    chain = chain_of(filters_of(FILTERS, {"decontaminate": (f"{folder}/",)}))
    assert chain is not None
    rows = sample("seen", "some text", jpeg(1), jpeg(1, side=200, quality=50), jpeg(2))
    losses = chain.fitted({}, (), str(tmp_path))(batch_of(rows)).losses
    assert [loss.reason for loss in losses] == ["in pics: pics/same [1]"] * 2
    equal, near = losses
    assert equal.score is None and near.score is not None and 0 < near.score <= 31
    assert [str(loss.threshold).partition(" xxh3:")[0] for loss in losses] == ["pics"] * 2


def test_a_benchmark_that_is_not_there_is_named(tmp_path: Path) -> None:
    filters = filters_of(FILTERS, {"decontaminate": (str(tmp_path / "gone.jsonl"),)})
    with pytest.raises(FilterSettingError, match=r"decontaminate: .*gone.jsonl"):
        chain_of(filters)


def test_a_changed_benchmark_is_another_one(tmp_path: Path) -> None:
    before = Benchmark.of(benchmark(tmp_path, {"id": "q1", "question": QUESTION}), 13)
    assert Benchmark.of(before.location, 13) == before
    assert Benchmark.of(before.location, 8) != before
    benchmark(tmp_path, {"id": "q1", "question": f"{QUESTION} more"})
    assert Benchmark.of(before.location, 13) != before


def test_a_damaged_benchmark_is_refused(tmp_path: Path) -> None:
    """What cannot be read of it would not be looked for, and what is like that would stay."""
    lines = Path(benchmark(tmp_path, {"id": "q1", "question": QUESTION}, {"id": "q2", "question": QUESTION}))
    cut, tar = tmp_path / "cut.jsonl", tmp_path / "short.tar"
    cut.write_bytes(lines.read_bytes()[:-20])
    make_tar(tar, [(f"{name}.json", {"texts": [QUESTION]}) for name in "ab"])
    tar.write_bytes(tar.read_bytes()[:1700])
    for damaged, told in ((cut, "cut.jsonl: line 2: not JSON"), (tar, "short.tar: byte 1536: ")):
        chain = chain_of(filters_of(FILTERS, {"decontaminate": (str(damaged),)}))
        assert chain is not None
        with pytest.raises(FilterSettingError, match=f"decontaminate: {tmp_path}/{told}"):
            chain.fitted({}, (), str(tmp_path))
    assert not list(tmp_path.glob("*.benchmark.parquet"))


def test_a_benchmark_of_which_files_would_be_ignored_is_refused(tmp_path: Path) -> None:
    benchmark(tmp_path, {"id": "q1", "question": QUESTION})
    pq.write_table(pa.table({"question": [QUESTION]}), tmp_path / "more.parquet")
    with pytest.raises(FilterSettingError, match=r"decontaminate: .* JSON lines beside other data ignored"):
        chain_of(filters_of(FILTERS, {"decontaminate": (str(tmp_path),)}))


def test_images_of_a_benchmark_that_are_not_there_are_told(tmp_path: Path) -> None:
    location = benchmark(
        tmp_path, {"id": "q1", "texts": [QUESTION, None, None], "images": [None, "a.jpg", "b.jpg"]}
    )
    with pytest.warns(
        UserWarning, match=r"mmlu.jsonl: 2 images cannot be read and are not looked for: .*a.jpg"
    ):
        assert known(location).text(word_hashes(QUESTION, 13)) is not None
