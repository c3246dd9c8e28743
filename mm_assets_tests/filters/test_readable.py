"""Images that cannot be used become error rows before they are written."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mm_assets.filters import readable
from mm_assets.filters.readable import CHECKED, DECODED, UNDECODABLE, ReadableImages
from mm_assets.model.errors import DECOMPRESSION_BOMB, UNDECODABLE_IMAGE, fault_of
from mm_assets.model.samples import ROWS_CHANGED, StepResult
from mm_assets_tests.formats.datasets import batch_of, item
from mm_assets_tests.formats.images.pictures import KINDS, picture
from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff
from mm_assets_tests.formats.images.variants import WHOLE, encoded, gif_with_frame, png_of, strips_tiff


def looked_at(*images: bytes | None, **options: Any) -> StepResult:
    return ReadableImages(**options)(
        batch_of([item("s"), *(item("s", n, "image", binary_content=data) for n, data in enumerate(images))])
    )


def errors_of(result: StepResult) -> list[str | None]:
    return [row["materialize_error"] for row in result.batch.data.to_pylist() if row["modality"] == "image"]


def never(*_: Any) -> bool:
    pytest.fail("decoded")


def without_pixels(data: bytes) -> bytes:
    """The PNG with damage inside, its structure untouched."""
    at = data.index(b"IDAT") + 4 + len(data) // 2
    return data[:at] + bytes(40) + data[at + 40 :]


def test_unreadable_images_are_marked_and_keep_their_bytes() -> None:
    images = [picture(0)[1], b"nonsense", b"", None]
    rows = [item("s"), *(item("s", n, "image", binary_content=data) for n, data in enumerate(images))]
    source = batch_of(
        [
            *rows,
            item("s", 9, "image", binary_content=b"junk", materialize_error="earlier"),
            item("s", 10, text_content="t"),
        ]
    )
    result = ReadableImages()(source)
    found = result.batch.data.to_pylist()
    assert [row["binary_content"] for row in found] == [
        row["binary_content"] for row in source.data.to_pylist()
    ]
    errors = [row["materialize_error"] for row in found]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("unreadable image: ")
    assert errors[3].startswith("unreadable image: ")
    assert errors[4:] == [None, "earlier", None]
    assert result.losses == ()
    assert result.counts == {CHECKED: 3, DECODED: 0, UNDECODABLE: 0, ROWS_CHANGED: 2}


def test_sound_batches_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "decode", never)
    pictures = [picture(n)[1] for n in range(len(KINDS))] + list(WHOLE.values())
    source = batch_of(
        [item("s"), *(item("s", n, "image", binary_content=data) for n, data in enumerate(pictures))]
    )
    result = ReadableImages()(source)
    assert result.batch.data.equals(source.data)
    assert result.counts == {CHECKED: len(pictures), DECODED: 0, UNDECODABLE: 0, ROWS_CHANGED: 0}
    assert ReadableImages()(batch_of([])).batch.num_rows == 0


@pytest.mark.parametrize("name", [n for n in WHOLE if n not in ("gif animated", "png animated")])
@pytest.mark.parametrize("part", [0.6, 0.8, 0.95])
def test_cut_bodies_are_errors(name: str, part: float) -> None:
    data = WHOLE[name]
    result = looked_at(data[: int(len(data) * part)])
    (error,) = errors_of(result)
    assert error is not None
    assert fault_of(error) == UNDECODABLE_IMAGE
    if result.counts[DECODED]:  # otherwise the header tells
        assert error.startswith("unreadable image: cut or damaged: ")
    assert result.counts[UNDECODABLE] == result.counts[DECODED]


@pytest.mark.parametrize("kind", ["gif", "png"])
def test_an_animation_is_as_good_as_its_first_picture(kind: str) -> None:
    data = WHOLE[f"{kind} animated"]
    result = looked_at(data[: len(data) * 9 // 10], data[: len(data) // 5])
    first, second = errors_of(result)
    assert first is None
    assert second is not None
    assert (result.counts[DECODED], result.counts[UNDECODABLE]) == (2, 1)


@pytest.mark.parametrize("name", WHOLE)
def test_stray_bytes_behind_the_picture_pass(name: str) -> None:
    result = looked_at(WHOLE[name] + b"stray bytes")
    assert errors_of(result) == [None]
    assert result.counts[DECODED] == (not name.startswith(("bmp", "tiff")))
    assert result.counts[UNDECODABLE] == 0


def test_bombs_are_measured_and_never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "decode", never)
    bombs = [
        png_of(30_000, 20_000),
        png_of(30_000, 20_000)[:-9],
        write_tiff([grey_page(30_000, 20_000, b"x")]),
    ]
    for options in ({}, {"decode_fraction": 1.0}):
        result = looked_at(*bombs, **options)
        assert errors_of(result) == ["decompression bomb: 30000x20000 pixels, at most 178956970"] * 3
        assert result.counts == {CHECKED: 3, DECODED: 0, UNDECODABLE: 0, ROWS_CHANGED: 3}
        assert {fault_of(str(error)) for error in errors_of(result)} == {DECOMPRESSION_BOMB}


def test_the_bound_on_pixels() -> None:
    data = encoded("png", size=(40, 25))
    assert errors_of(looked_at(data, max_pixels=1000)) == [None]
    assert errors_of(looked_at(data, max_pixels=999)) == ["decompression bomb: 40x25 pixels, at most 999"]


def test_bombs_that_only_decoding_meets() -> None:
    frames = write_tiff([grey_page(9, 9, bytes(81)), grey_page(300, 200, b"x")])
    gif = gif_with_frame((5, 5), (2000, 3000))
    assert errors_of(looked_at(gif, max_pixels=50_000)) == [
        "decompression bomb: 2000x3000 pixels, at most 50000"
    ]
    result = looked_at(gif, frames, decode_fraction=1, max_pixels=50_000)
    assert errors_of(result) == [
        f"decompression bomb: {size} pixels, at most 50000" for size in ("2000x3000", "300x200")
    ]
    assert (result.counts[DECODED], result.counts[UNDECODABLE]) == (0, 0)


def test_more_frames_than_can_be_decoded() -> None:
    """Their number says nothing against a whole file, but a damaged one stays unproven."""
    data = strips_tiff(frames=12)
    largest = 31 * 30
    assert errors_of(looked_at(data, decode_fraction=1, max_pixels=largest)) == [None]
    result = looked_at(data[:-2], max_pixels=largest)
    assert errors_of(result) == ["unreadable image: cut or damaged: too many frames to decode them all"]
    assert (result.counts[DECODED], result.counts[UNDECODABLE]) == (1, 1)
    assert errors_of(looked_at(data[:-2])) == [None]  # the end of the chain is all that is missing


def test_damage_inside_a_whole_picture_is_found_by_decoding() -> None:
    damaged = without_pixels(WHOLE["png"])
    assert errors_of(looked_at(damaged)) == [None]
    result = looked_at(damaged, WHOLE["png"], decode_fraction=1.0)
    bad, good = errors_of(result)
    assert good is None
    assert bad is not None
    assert bad.startswith("unreadable image: ")
    assert "cut" not in bad
    assert result.counts == {CHECKED: 2, DECODED: 2, UNDECODABLE: 1, ROWS_CHANGED: 1}


def test_the_sample_is_told_by_sample_and_position_alone() -> None:
    damaged = without_pixels(WHOLE["png"])
    rows = [
        item(f"s{n}", position, "image", binary_content=damaged) for n in range(60) for position in range(10)
    ]

    def sampled(fraction: float, batches: list[list[dict[str, Any]]]) -> set[tuple[str, int]]:
        results = [ReadableImages(fraction)(batch_of(batch)) for batch in batches]
        found = [
            row for result in results for row in result.batch.data.to_pylist() if row["materialize_error"]
        ]
        assert sum(result.counts[DECODED] for result in results) == len(found)
        return {(row["sample_id"], row["position"]) for row in found}

    tenth = sampled(0.1, [rows])
    assert 30 < len(tenth) < 90
    assert len({position for _, position in tenth}) == 10
    assert len({sample_id for sample_id, _ in tenth}) > 25  # no sample goes as a whole
    assert sampled(0.1, [rows[::-1]]) == tenth
    assert sampled(0.1, [rows[at : at + 7] for at in range(0, 600, 7)]) == tenth
    assert tenth < sampled(0.5, [rows]) < sampled(1.0, [rows])
    assert len(sampled(1.0, [rows])) == 600
    assert sampled(0.0, [rows]) == set()


def test_as_a_step_of_a_job() -> None:
    step = ReadableImages(0.25, 1000)
    assert pickle.loads(pickle.dumps(step)) == step  # noqa: S301 our own
    assert step != ReadableImages(0.5, 1000)
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"decode_fraction must be 0\.\.1"):
            ReadableImages(fraction)
    with pytest.raises(ValueError, match="max_pixels must be at least 1, not 0"):
        ReadableImages(max_pixels=0)
