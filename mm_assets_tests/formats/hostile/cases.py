"""All cases of hostile raw shards."""

from __future__ import annotations

from mm_assets_tests.formats.hostile import (
    cases_declared,
    cases_gzip,
    cases_ids,
    cases_images,
    cases_json,
    cases_layout,
    cases_lists,
    cases_pairs,
    cases_references,
    cases_sizes,
    cases_tar,
)
from mm_assets_tests.formats.hostile.outcomes import Case

MODULES = (
    cases_json,
    cases_ids,
    cases_lists,
    cases_layout,
    cases_declared,
    cases_references,
    cases_images,
    cases_tar,
    cases_gzip,
    cases_sizes,
    cases_pairs,
)

CASES: list[Case] = [case for module in MODULES for case in module.CASES]
