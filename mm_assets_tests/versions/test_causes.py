"""Causes of changed outputs, from what their records say."""

from __future__ import annotations

from typing import Any

import pytest

from mm_assets.versions import OutputState
from mm_assets.versions.diff import OTHER_SHARDS, RAW_CHANGED, UNKNOWN, causes_of

CURATED = {"code_version": "3", "options": {"layout": {"texts_field": "texts"}, "max": None}}
FILTERED: dict[str, Any] = {"code_version": "2", "steps": {"aspect_ratio": {"min_ratio": 0.5}}}


def _states(raw: str = "r1", curated: str = "c1", **changes: dict[str, Any]) -> dict[str, OutputState]:
    """A curated and a filtered shard; ``changes`` are further fields by asset."""
    fields: dict[str, dict[str, Any]] = {
        "curated_parquet": {"version": curated, "inputs": {"raw_shards": raw}, "settings": CURATED},
        "filtered_parquet": {"version": "f", "inputs": {"curated_parquet": curated}, "settings": FILTERED},
    }
    made = {}
    for asset, values in fields.items():
        given = {"made_by": "m", **values, **changes.get(asset, {})}
        fingerprint = given.pop("fingerprint", repr(sorted(given.items(), key=lambda item: item[0])))
        made[asset] = OutputState(asset, "p", fingerprint=fingerprint, **given)
    return made


def _of(before: dict[str, OutputState], after: dict[str, OutputState]) -> tuple[tuple[str, ...], ...]:
    found = causes_of(before, after)
    return found["curated_parquet"], found["filtered_parquet"]


def test_equal_origins_have_no_cause() -> None:
    assert _of(_states(), _states()) == ((), ())


def test_raw_data_come_through_to_what_is_made_of_them() -> None:
    assert _of(_states(), _states("r2", "c2")) == ((RAW_CHANGED,), (RAW_CHANGED,))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({**FILTERED, "code_version": "3"}, ("code of filtered_parquet: version 2 -> 3",)),
        ({"code_version": "2"}, ("MM_MIN_ASPECT_RATIO was 0.5, is unset",)),
        (
            {**FILTERED, "steps": {"aspect_ratio": {"min_ratio": 1, "max_ratio": 2}}},
            (
                "MM_MIN_ASPECT_RATIO was 0.5, is 1",
                "MM_MAX_ASPECT_RATIO was unset, is 2",
            ),
        ),
        (
            {**FILTERED, "steps": {"aspect_ratio": {"min_ratio": 0.5, "version": "2"}}},
            ("code of aspect_ratio: version unset -> 2",),
        ),
        (
            {
                **FILTERED,
                "steps": {
                    **FILTERED["steps"],
                    "words": {"least": 2, "most": "inf", "action": "drop_sample", "version": "1"},
                },
            },
            ("MM_MIN_WORDS was unset, is 2",),
        ),
        (
            {**FILTERED, "steps": {**FILTERED["steps"], "sharpness": {"version": "1"}}},
            ("sharpness was unset, is set",),
        ),
        (
            {**FILTERED, "steps": {"aspect_ratio": {"min_ratio": 0.5, "action": "flag"}}},
            ("MM_FILTER_ACTIONS of aspect_ratio was unset, is flag",),
        ),
        (
            {**FILTERED, "steps": {**FILTERED["steps"], "ReadableImages": {"max_pixels": 9, "own": 1}}},
            ("MM_MAX_IMAGE_PIXELS was unset, is 9", "ReadableImages.own was unset, is 1"),
        ),
        ({**FILTERED, "options": {"images": "reference"}}, ("MM_FILTERED was copy, is reference",)),
        ({**FILTERED, "checks": {"mine": "2"}}, ("code of check mine: version unset -> 2",)),
        (FILTERED, ("code has changed",)),
        ({}, ("code or settings have changed",)),
    ],
)
def test_settings_and_code(settings: dict[str, Any], told: tuple[str, ...]) -> None:
    after = _states(filtered_parquet={"made_by": "other", "settings": settings})
    assert _of(_states(), after) == ((), told)


def test_the_way_back_to_copies() -> None:
    before = _states(filtered_parquet={"settings": {**FILTERED, "options": {"images": "reference"}}})
    after = _states(filtered_parquet={"made_by": "other"})
    assert _of(before, after)[1] == ("MM_FILTERED was reference, is copy",)


def test_the_version_of_a_step_that_is_gone_is_no_code() -> None:
    settings = {**FILTERED, "steps": {"sharpness": {"version": "1"}, "words": {"least": 2, "version": "1"}}}
    before = _states(filtered_parquet={"made_by": "other", "settings": settings})
    after = _states(filtered_parquet={"settings": {**FILTERED, "steps": {}}})
    assert _of(before, after)[1] == (
        "MM_MIN_WORDS was 2, is unset",
        "sharpness was set, is unset",
    )


def test_a_setting_of_an_input_and_one_of_its_own() -> None:
    layout = {**CURATED, "options": {"layout": {"texts_field": "paragraphs"}, "max": None}}
    after = _states(
        curated="c2",
        curated_parquet={"made_by": "other", "settings": layout},
        filtered_parquet={"made_by": "other", "settings": {**FILTERED, "code_version": "3"}},
    )
    first = "MM_TEXTS_FIELD was texts, is paragraphs"
    assert _of(_states(), after) == ((first,), ("code of filtered_parquet: version 2 -> 3", first))


def test_what_is_left_is_what_other_shards_have() -> None:
    """Types of columns and owners of ids are resolved over all shards."""
    after = _states(curated="c2", curated_parquet={"fingerprint": "other"})
    assert _of(_states(), after) == ((OTHER_SHARDS,), (OTHER_SHARDS,))


def test_a_record_without_inputs_gives_no_cause() -> None:
    before = _states(curated_parquet={"inputs": {}})
    assert _of(before, _states("r2", "c2")) == ((UNKNOWN,), (UNKNOWN,))
