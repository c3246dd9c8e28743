"""The aspect-ratio filter: bounds, orientation, what it drops and what it must not."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.filters.chain import FilterChain
from mm_assets.filters.registry import AspectRatioFilter
from mm_assets.filters.scores import SCORES_SCHEMA, ImageScores, score_rows, score_table
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.losses import with_errors
from mm_assets_tests.formats.datasets import batch_of, item


def image(width: int, height: int, kind: str = "PNG", orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, kind, **({"exif": exif} if orientation != 1 else {}))
    return out.getvalue()


def batch(*images: bytes | None, **values: object) -> InterleavedBatch:
    rows = [item("s", content_type="application/json"), item("s", 0, text_content="t")]
    rows += [item("s", 2 * n, "image", binary_content=data, **values) for n, data in enumerate(images)]
    rows.sort(key=lambda row: row["position"])
    return batch_of(rows, source_files=("f",), partition="p")


def kept(result: InterleavedBatch) -> list[int]:
    return [row["position"] for row in result.data.to_pylist() if row["modality"] == "image"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_bounds_are_inclusive_and_positions_keep_their_gaps(kind: str) -> None:
    shapes = [(20, 20), (40, 20), (41, 20), (19, 20), (30, 20)]
    result = AspectRatioFilter(1.0, 2.0)(batch(*[image(w, h, kind) for w, h in shapes]))
    assert kept(result.batch) == [0, 2, 8]
    assert [
        (d.sample_id, d.position, d.modality, d.kind, d.reason, d.score, d.threshold) for d in result.losses
    ] == [
        ("s", 4, "image", "aspect_ratio", "wider than max_ratio", 2.05, "1..2"),
        ("s", 6, "image", "aspect_ratio", "narrower than min_ratio", 0.95, "1..2"),
    ]
    assert result.batch.data.num_rows == 5
    assert (list(result.batch.source_files), result.batch.partition) == (["f"], "p")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_turns_the_ratio(orientation: int) -> None:
    wide = image(40, 20, "JPEG", orientation)
    assert kept(AspectRatioFilter(1.5, 3)(batch(wide)).batch) == ([0] if orientation < 5 else [])


def test_unreadable_images_become_error_rows_with_their_bytes() -> None:
    broken = [b"", b"nonsense", image(20, 20)[:12], None]
    result = AspectRatioFilter(1, 2)(batch(*broken, image(20, 20)))
    assert kept(result.batch) == [0, 2, 4, 6, 8]
    assert result.losses == ()
    rows = [row for row in result.batch.data.to_pylist() if row["modality"] == "image"]
    assert [row["binary_content"] for row in rows[:4]] == broken
    assert all(row["materialize_error"].startswith("unreadable image: ") for row in rows[:3])
    assert rows[3]["materialize_error"] == "no image bytes"
    assert rows[4]["materialize_error"] is None


def test_rows_with_an_error_wait_for_the_policy() -> None:
    source = batch(None, image(90, 10), materialize_error="gone")
    result = AspectRatioFilter(1, 2)(source)
    assert result.batch is source
    assert result.losses == ()


def test_only_images_are_dropped_even_where_a_text_has_their_position() -> None:
    result = AspectRatioFilter(1, 2)(batch(image(90, 10)))
    assert [(r["position"], r["modality"]) for r in result.batch.data.to_pylist()] == [
        (-1, "metadata"),
        (0, "text"),
    ]


@pytest.mark.parametrize("source", [batch(), batch_of([])])
def test_without_images_the_batch_is_the_same(source: InterleavedBatch) -> None:
    assert AspectRatioFilter(1, 2)(source).batch is source


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-1, -1), (2, 1), (float("nan"), 1), (1, float("nan"))])
def test_senseless_bounds_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="0 <= min <= max"):
        AspectRatioFilter(low, high)


def test_chunked_tables_and_large_columns(tmp_path: Path) -> None:
    whole = batch(image(20, 20), image(90, 10), None, image(30, 20)).data
    chunked = pa.concat_tables([whole.slice(0, 2), whole.slice(2, 1), whole.slice(3)])
    expected = AspectRatioFilter(1, 2)(InterleavedBatch(whole)).batch.data
    assert AspectRatioFilter(1, 2)(InterleavedBatch(chunked)).batch.data.equals(expected)


def test_scores_measured_before_give_the_same_and_read_no_bytes(tmp_path: Path) -> None:
    source = batch(image(20, 20), image(90, 10), b"nonsense", image(20, 40, "JPEG", 6))
    pq.write_table(score_table(source.data), tmp_path / "scores.parquet")
    bound = FilterChain((AspectRatioFilter(1, 2),)).bind({"scores": (str(tmp_path / "scores.parquet"), None)})
    direct = AspectRatioFilter(1, 2)(source)
    without = source.data.set_column(5, "binary_content", pa.nulls(source.num_rows, pa.large_binary()))
    scored = bound(InterleavedBatch(without))
    assert scored.losses == direct.losses
    assert scored.batch.data.drop_columns("binary_content").equals(
        direct.batch.data.drop_columns("binary_content")
    )
    assert FilterChain((AspectRatioFilter(1, 2),)).bind({}) == FilterChain((AspectRatioFilter(1, 2),))
    assert pickle.loads(pickle.dumps(AspectRatioFilter(1, 2))) == AspectRatioFilter(1, 2)  # noqa: S301


def test_scores_of_other_images_are_refused(tmp_path: Path) -> None:
    pq.write_table(score_table(batch(image(20, 20)).data), tmp_path / "scores.parquet")
    bound = FilterChain((AspectRatioFilter(1, 2),)).bind({"scores": (str(tmp_path / "scores.parquet"), None)})
    with pytest.raises(ValueError, match="sample 's', position 2: no image score"):
        bound(batch(image(20, 20), image(20, 20)))


def test_score_table() -> None:
    scores = score_table(batch(image(40, 20, "JPEG", 6), b"junk", None).data)
    assert scores.schema.equals(SCORES_SCHEMA)
    first, junk, none = scores.to_pylist()
    assert (
        first["sample_id"],
        first["position"],
        first["width"],
        first["height"],
        first["format"],
        first["orientation"],
    ) == (
        "s",
        0,
        20,
        40,
        "jpg",
        6,
    )
    assert (junk["width"], junk["byte_size"], junk["error"][:16]) == (None, 4, "unreadable image")
    assert none["error"] == "no image bytes"
    carried = score_table(batch(image(40, 20), materialize_error="gone").data).to_pylist()[0]
    assert (carried["width"], carried["error"]) == (None, "gone")
    assert ImageScores(scores).of(batch(image(40, 20, "JPEG", 6)).data, [1])[0].width == 20


def test_a_ratio_needs_no_pixels() -> None:
    (score,) = score_rows(batch(image(30, 20, "PNG")[:60]).data, [2])
    assert score.aspect_ratio == 1.5


def test_with_errors_keeps_the_column_type() -> None:
    table = batch_of([item("s"), item("s", 0)]).data
    assert with_errors(table, {}) is table
    marked = with_errors(table, {1: "bad"})
    assert marked["materialize_error"].to_pylist() == [None, "bad"]
    assert marked.schema.equals(table.schema, check_metadata=True)
