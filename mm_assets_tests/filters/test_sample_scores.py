"""The table of sample scores: exact values, odd texts, and what is taken over instead of measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from mm_assets.filters.measure import SampleContent, SampleMeasure, column_of, digest_of_scores
from mm_assets.filters.measures import SAMPLE_MEASURES
from mm_assets.filters.scores import (
    SAMPLE_SCORES_SCHEMA,
    SampleScore,
    SampleScores,
    score_samples,
    text_digest,
)
from mm_assets.filters.texts import TextMeasure
from mm_assets.formats.parquet import UnreadableFile, publish_table, read_small_table
from mm_assets.model.errors import DataError
from mm_assets_tests.formats.datasets import item, table_of


@dataclass(frozen=True)
class Characters(SampleMeasure):
    name = "characters"
    type = pa.int64()
    version = "1"
    meaning = "characters of the texts"

    factor: int = 1

    def measure(self, sample: SampleContent) -> Any:
        return self.factor * len(sample.text) or None


@dataclass(frozen=True)
class Unwanted(Characters):
    def measure(self, sample: SampleContent) -> Any:
        raise AssertionError("measured again")


@dataclass(frozen=True)
class Newer(Characters):
    version = "2"


@dataclass(frozen=True)
class Missing(Characters):
    def measure(self, sample: SampleContent) -> Any:
        raise ModuleNotFoundError("No module named 'py3langid'", name="py3langid")


def sample(sample_id: str, *texts: str | None, images: int = 0) -> list[dict[str, Any]]:
    rows = [item(sample_id, content_type="application/json")]
    rows += [item(sample_id, place, text_content=text) for place, text in enumerate(texts)]
    places = range(len(texts), len(texts) + images)
    return rows + [item(sample_id, place, "image", binary_content=b"x") for place in places]


def scores(*samples: Sequence[dict[str, Any]], **arguments: Any) -> pa.Table:
    if "known" in arguments:
        arguments["known"] = SampleScores(arguments["known"])
    return score_samples(table_of([row for rows in samples for row in rows]), **arguments)


def words(*texts: str) -> int:
    return scores(sample("s", *texts)).column("words")[0].as_py()


def test_one_row_a_sample_in_order_of_appearance() -> None:
    table = scores(sample("b", "one two", "three", images=2), sample("a", "x"), sample("c"))
    assert table.schema.equals(SAMPLE_SCORES_SCHEMA, check_metadata=True)
    assert table.to_pylist() == [
        {
            "sample_id": "b",
            "images": 2,
            "texts": 2,
            "words": 3,
            "text_digest": text_digest(["one two", "three"]),
        },
        {"sample_id": "a", "images": 0, "texts": 1, "words": 1, "text_digest": text_digest(["x"])},
        {"sample_id": "c", "images": 0, "texts": 0, "words": 0, "text_digest": None},
    ]


def test_no_rows() -> None:
    table = score_samples(table_of([]), SAMPLE_MEASURES)
    assert table.num_rows == 0
    assert table.schema.equals(SampleScores.schema(SAMPLE_MEASURES), check_metadata=True)


def test_errors_and_nulls_do_not_count() -> None:
    rows = [
        item("s", 0, text_content="kept"),
        item("s", 1, text_content=None),
        item("s", 2, text_content="of no use", materialize_error="broken"),
        item("s", 3, "image", binary_content=b"x"),
        item("s", 4, "image", materialize_error="no image bytes"),
        item("s", -1, "metadata", text_content="no item"),
    ]
    assert scores(rows, measures=[Characters()]).to_pylist() == [
        {
            "sample_id": "s",
            "images": 1,
            "texts": 1,
            "words": 1,
            "text_digest": text_digest(["kept"]),
            "characters": 4,
        }
    ]


def test_rows_of_a_sample_need_not_be_together() -> None:
    rows = [item("a", 0, text_content="x"), item("b", 0, text_content="y"), item("a", 1, text_content="z")]
    assert scores(rows).column("text_digest").to_pylist() == [text_digest(["x", "z"]), text_digest(["y"])]


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (("",), 0),
        ((" \n\t\r\x0b\x0c\x1c\x85",), 0),
        (("\u00a0\u2003\u3000",), 0),
        (("a\u00a0b",), 2),
        (("a\u200bb",), 1),  # the zero-width space is no white space
        (("😀 😀😀",), 2),
        (("没有空格的中文",), 1),
        (("שלום עולם",), 2),
        (("\u0301 \u0301\u0301",), 2),
        (("a", "b c", ""), 3),
        (("x" * 5_000_000,), 1),
        (("x " * 1_000_000,), 1_000_000),
    ],
)
def test_words(texts: Sequence[str], count: int) -> None:
    assert words(*texts) == count


def test_the_digest_is_framed() -> None:
    frames = b"\x02" + b"\0" * 7 + b"ab" + b"\x02" + b"\0" * 7 + "é".encode()
    assert text_digest(["ab", "é"]) == xxhash.xxh3_128_hexdigest(frames)
    different = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["abc", ""], ["", "abc"], [""], ["", ""]]
    digests = [text_digest(texts) for texts in different]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests if digest is not None} == {32}
    assert text_digest([]) is None


def test_images_per_word() -> None:
    assert SampleScore(3, 1, 6).images_per_word == 0.5
    assert SampleScore(3, 0, 0).images_per_word == 3
    assert SampleScore().images_per_word == 0


def test_a_column_says_which_measure_filled_it() -> None:
    table = scores(sample("s", "abc"), measures=[Newer(2)])
    field = table.schema.field("characters")
    assert field.metadata == {b"mm_assets:measure": b'{"factor": 2, "version": "2"}'}
    assert SampleScores.schema(SAMPLE_MEASURES).field("repetition").metadata == {
        b"mm_assets:measure": b'{"version": "1"}'
    }
    assert table.column("characters").to_pylist() == [6]


def test_what_is_known_is_taken_over(tmp_path: Path) -> None:
    both = (sample("a", "abc", images=1), sample("b", ""), sample("c"))
    known = scores(*both, measures=[Characters()])
    assert known.column("characters").to_pylist() == [3, None, None]
    uri = str(tmp_path / "scores.parquet")
    publish_table(uri, known)
    stored = read_small_table(uri)
    assert scores(*both, measures=[Unwanted()], known=stored).equals(known, check_metadata=True)
    assert scores(*reversed(both), measures=[Unwanted()], known=stored).column("characters").to_pylist() == [
        None,
        None,
        3,
    ]
    with_more = scores(*both, measures=[Unwanted(), *SAMPLE_MEASURES], known=stored)
    assert with_more.equals(scores(*both, measures=[Characters(), *SAMPLE_MEASURES]), check_metadata=True)


@pytest.mark.parametrize(
    "changed",
    [
        sample("a", "abd", images=1),
        sample("a", "ab", "c", images=1),
        sample("a", "abc"),
        sample("a", images=1),
        sample("new", "abc", images=1),
    ],
)
def test_samples_that_are_not_what_they_were_are_measured(changed: list[dict[str, Any]]) -> None:
    known = scores(sample("a", "abc", images=1), sample("b", "x"), measures=[Characters()])
    with pytest.raises(ValueError, match="measured again"):
        scores(changed, measures=[Unwanted()], known=known)
    now = scores(changed, sample("b", "x"), measures=[Characters()], known=known)
    assert now.equals(scores(changed, sample("b", "x"), measures=[Characters()]), check_metadata=True)


def test_another_measure_of_the_name_is_measured() -> None:
    rows = sample("a", "abc")
    known = scores(rows, measures=[Characters()])
    for other in (Newer(), Characters(2)):
        table = scores(rows, measures=[other], known=known)
        assert table.column("characters").to_pylist() == [3 * other.factor]
        assert table.schema.equals(SampleScores.schema([other]), check_metadata=True)
    bare = known.cast(pa.schema([field.remove_metadata() for field in known.schema]))
    wide = known.set_column(
        5,
        known.schema.field("characters").with_type(pa.int32()),
        known.column("characters").cast(pa.int32()),
    )
    for foreign in (bare, wide, scores(rows)):
        with pytest.raises(ValueError, match="measured again"):
            scores(rows, measures=[Unwanted()], known=foreign)


def test_a_measure_that_fails_is_named_with_the_sample() -> None:
    where = f"measure 'characters' of {__name__}"
    with pytest.raises(ValueError, match=f"^sample 'a': {where}: AssertionError: measured again$"):
        scores(sample("a", "x"), measures=[Unwanted()])
    with pytest.raises(ValueError, match="^measure 'characters': .*"):
        scores(sample("a", "x"), measures=[Characters(2**63)])


def test_a_missing_library_is_no_fault_of_a_sample() -> None:
    with pytest.raises(ModuleNotFoundError, match="^No module named 'py3langid'$"):
        scores(sample("a", "x"), measures=[Missing()])


def test_what_is_only_known_is_kept_for_equal_samples_alone() -> None:
    known = scores(sample("a", "abc"), measures=[Characters()])
    kept = scores(sample("a", "abc"), known=known)
    assert kept.equals(known, check_metadata=True)
    assert kept.schema.field("characters") == column_of(Characters())
    with pytest.raises(ValueError, match="^sample 'a': the known characters is that of another content$"):
        scores(sample("a", "abd"), known=known)


def test_values_of_texts_are_taken_over_as_they_were_measured() -> None:
    both = sample("a", "the cat", "", "漢字"), sample("b")
    texts = [measure for measure in SAMPLE_MEASURES if isinstance(measure, TextMeasure)]
    stored = scores(*both, measures=texts)
    assert stored.column("text_stopwords").to_pylist() == [[1 / 2, None, 0.0], []]
    assert (
        scores(*both, measures=[Characters(), *texts], known=stored)
        .drop("characters")
        .equals(stored, check_metadata=True)
    )


def test_text_that_is_not_utf_8() -> None:
    table = table_of([*sample("good", "x"), *sample("bad", "x")])
    texts = [None, b"x", None, b"\xff\xfe"]
    bad = pa.array(texts, pa.binary()).view(pa.string())
    table = table.set_column(table.column_names.index("text_content"), "text_content", bad)
    with pytest.raises(DataError, match="^sample 'bad': text_content: text that is not UTF-8: .*0xff"):
        score_samples(table)


def test_stored_scores(tmp_path: Path) -> None:
    uri = str(tmp_path / "scores.parquet")
    measures = [Characters(), *(m for m in SAMPLE_MEASURES if not isinstance(m, TextMeasure))]
    table = scores(sample("a", "one two", images=1), sample("b", images=3), measures=measures)
    publish_table(uri, table)
    book = SampleScores.read(uri, digest_of_scores(table))
    nothing = {"language": None, "language_probability": None, "minhash": None}
    repeated = ("repetition", "repeated_lines", "character_repetition", "word_repetition")
    values = {"characters": 7, **nothing, **dict.fromkeys(repeated, 0.0)}
    assert book.get("a") == SampleScore(1, 1, 2, text_digest(["one two"]), values)
    assert book.get("b") == SampleScore(3, 0, 0, None, dict.fromkeys(values))
    assert book.get("c") is None
    assert [book.get(name).images_per_word for name in ("a", "b")] == [0.5, 3.0]  # type: ignore[union-attr]
    with pytest.raises(UnreadableFile, match="scores.parquet: damaged: its rows are not those that were"):
        SampleScores.read(uri, digest_of_scores(table.slice(1)))


def test_files_that_hold_no_sample_scores(tmp_path: Path) -> None:
    uri = str(tmp_path / "scores.parquet")
    with pytest.raises(FileNotFoundError):
        SampleScores.read(uri)
    table = scores(sample("a", "one two"))
    other = table.set_column(1, "images", pa.array([1], pa.int64()))
    for wrong, line in ((table.drop_columns("words"), "not those of scores"), (other, "not those of scores")):
        publish_table(uri, wrong)
        with pytest.raises(UnreadableFile, match=f"scores.parquet: .*{line}"):
            SampleScores.read(uri)
    publish_table(uri, table)
    data = Path(uri).read_bytes()
    Path(uri).write_bytes(data[: len(data) // 2])
    with pytest.raises(UnreadableFile, match="scores.parquet: damaged: "):
        SampleScores.read(uri)
