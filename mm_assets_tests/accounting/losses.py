"""Losses as readers tell them."""

from __future__ import annotations

from mm_assets.model.losses import Loss
from mm_assets.model.samples import build_source_ref

BAD_JSON = Loss(
    "b",
    -1,
    "metadata",
    "quarantined",
    "bad_json",
    "not JSON: line 1",
    source_ref=build_source_ref("x.tar", "b.json", 512, 9),
)
