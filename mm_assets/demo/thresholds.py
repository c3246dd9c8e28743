"""Filter thresholds of the example shards, so that the demo shows a filter at work."""

from __future__ import annotations

import shlex

THRESHOLDS = {"MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}


def demo_thresholds() -> dict[str, str]:
    """Return the filter thresholds of the example shards, by variable.

    There are none if the user names shards or a setting of a filter.
    """
    from mm_assets.filters.registry import FILTERS, settings_of
    from mm_assets.settings import variable
    from mm_assets.settings_file import given_settings

    given = given_settings()
    named = ("MM_RAW_SHARDS", *(variable(known.name) for known in settings_of(FILTERS)))
    return {} if any(given.get(name) for name in named) else THRESHOLDS


if __name__ == "__main__":
    for name, value in demo_thresholds().items():
        print(f"export {name}={shlex.quote(value)}")
