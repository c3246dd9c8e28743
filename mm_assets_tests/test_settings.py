"""The one table of settings, and what is refused in it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from mm_assets.filters.registry import FILTERS, settings_of
from mm_assets.settings import Settings, describe, variable

PAGE = (Path(__file__).parent.parent / "docs" / "settings.md").read_text()


def test_defaults_filter_nothing() -> None:
    settings = Settings.load({})
    assert (settings.min_aspect_ratio, settings.max_aspect_ratio, settings.max_loss) == (None, None, 0.5)


def test_values_are_parsed_and_empty_ones_count_as_unset() -> None:
    given = {
        "MM_WORKERS": "3",
        "MM_MAX_LOSS": "0.25",
        "MM_IMAGE_EXTENSIONS": "jpg, heic",
        "MM_TEXTS_FIELD": "text_list",
        "MM_STORAGE": "",
        "OTHER": "x",
    }
    settings = Settings.load(given)
    assert (settings.workers, settings.max_loss, settings.storage) == (3, 0.25, "demo/storage")
    assert settings.raw_layout()["image_extensions"] == ("jpg", "heic")
    assert settings.raw_layout()["texts_field"] == "text_list"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("MM_MAX_ASPECT", "2", "MM_MAX_ASPECT: no such setting; the nearest is MM_MAX_ASPECT_RATIO"),
        ("MM_STORGE", "", "MM_STORGE: no such setting; the nearest is MM_STORAGE"),
        ("MM_WORKERS", "two", "MM_WORKERS must be a whole number, not 'two'"),
        ("MM_WORKERS", "-1", "MM_WORKERS must not be negative: -1"),
        ("MM_WORKERS", "1.5", "MM_WORKERS must be a whole number, not '1.5'"),
        ("MM_MAX_LOSS", "1.5", "MM_MAX_LOSS must be at most 1, not 1.5"),
        (
            "MM_FRESH_WITHIN",
            "1 week",
            "MM_FRESH_WITHIN must be a duration such as 90m, 24h or 7d, not '1 week'",
        ),
        ("MM_FRESH_WITHIN", "0h", "MM_FRESH_WITHIN must be a duration such as 90m, 24h or 7d, not '0h'"),
        (
            "MM_OWNERS",
            "team:data,ada",
            "MM_OWNERS must be e-mail addresses, or teams as in team:data, not 'ada'",
        ),
        ("MM_OWNERS", "team:", "MM_OWNERS must be e-mail addresses, or teams as in team:data, not 'team:'"),
        (
            "MM_IMAGE_EXTENSIONS",
            "jpg,tar.gz",
            "MM_IMAGE_EXTENSIONS: 'tar.gz' is no suffix of a file name, such as jpg",
        ),
        (
            "MM_JSON_EXTENSIONS",
            "*.json",
            "MM_JSON_EXTENSIONS: '*.json' is no suffix of a file name, such as jpg",
        ),
        (
            "MM_SHARD_TIMEOUT",
            "-1",
            "MM_SHARD_TIMEOUT must be seconds, or a duration such as 90s, 30m or 2h; 0: no limit; not '-1'",
        ),
        ("MM_RAY_ADDRESS", "local", "MM_RAY_ADDRESS must be auto, host:port or ray://host:port, not 'local'"),
        ("MM_UI_URL", "ui:3000", "MM_UI_URL must begin with http:// or https://, not 'ui:3000'"),
        ("MM_ALERT_ON", "info", "MM_ALERT_ON must be one of error, warn, not 'info'"),
        ("MM_ALERTS", "json://s3cret 'x", "MM_ALERTS: No closing quotation"),
        ("MM_MAX_LOSS", "nan", "MM_MAX_LOSS must be a number, not 'nan'"),
        ("MM_SAMPLE_ID_PREFIX", "file", "MM_SAMPLE_ID_PREFIX must be one of shard, not 'file'"),
        (
            "MM_ON_MATERIALIZE_ERROR",
            "skip",
            "MM_ON_MATERIALIZE_ERROR must be one of error, warn, drop_row, drop_sample, not 'skip'",
        ),
        (
            "MM_MAX_MEMBER_BYTES",
            "big",
            "MM_MAX_MEMBER_BYTES: not a size in bytes: 'big' (write 1048576, '64MiB' or '1GB')",
        ),
        ("MM_MAX_MEMBER_BYTES", "9" * 400, "MM_MAX_MEMBER_BYTES: not a size in bytes: '999"),
        ("MM_FRESH_WITHIN", "9" * 400 + "d", "MM_FRESH_WITHIN must be at most 100000d"),
        ("MM_MAX_LOSS", "9" * 400, f"MM_MAX_LOSS must be at most 1, not {'9' * 200}…"),
        *(
            (name, "9" * digits, f"{name} must be a whole number of at most 18 digits")
            for name in ("MM_WORKERS", "MM_MIN_IMAGE_SIDE", "MM_MAX_IMAGE_PIXELS")
            for digits in (19, 400, 4301)
        ),
        *(
            (name, text, f"{name} must be UTF-8 text without null characters")
            for name in ("MM_STORAGE", "MM_TEXTS_FIELD", "MM_ALERTS", "MM_KEEP_IMAGES", "MM_CLIP_MODEL")
            for text in ("a\0b", "json://\udcff")
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings.load({name: text})


def test_targets_of_alerts_are_shown_nowhere() -> None:
    given = {"MM_ALERTS": "json://example.com/s3cret 'slack://a/b c'", "MM_FRESH_WITHIN": "1.5d"}
    settings = Settings.load(given)
    assert settings.alerts == ("json://example.com/s3cret", "slack://a/b c")
    assert settings.fresh_within == 36 * 3600
    assert settings.shard_timeout == 3600
    given = {"90s": 90, "90": 90, "0.5": 0.5, "0": None, "2h": 7200}
    found = {text: Settings.load({"MM_SHARD_TIMEOUT": text}).shard_timeout for text in given}
    assert found == given
    assert "s3cret" not in repr(settings)


def test_bounds_the_wrong_way_round() -> None:
    with pytest.raises(
        ValueError, match="MM_MIN_ASPECT_RATIO is 2, more than MM_MAX_ASPECT_RATIO, which is 1"
    ):
        Settings.load({"MM_MIN_ASPECT_RATIO": "2", "MM_MAX_ASPECT_RATIO": "1"})


def test_every_setting_says_what_it_means_and_is_in_the_documentation() -> None:
    meanings = describe()
    assert set(meanings) == {variable(f.name) for f in fields(Settings)}
    assert all(meanings.values())
    of_filters = {variable(known.name) for known in settings_of(FILTERS)}  # `convert --help` lists them
    assert [name for name in meanings if f"`{name}`" not in PAGE and name not in of_filters] == []
