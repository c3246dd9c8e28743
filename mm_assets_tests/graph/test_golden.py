"""The net under a change that should change nothing: `mm_assets_tests.golden` tells what it holds."""

from __future__ import annotations

import json

from mm_assets_tests.golden import FILE, changes, golden


def test_known_input_comes_out_as_it_did() -> None:
    """A change that is meant: ``python -m mm_assets_tests.golden``, and the changelog says why."""
    assert changes(json.loads(FILE.read_text()), golden()) == []
