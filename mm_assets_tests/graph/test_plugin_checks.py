"""Checks of modules that `MM_PLUGINS` names, and the line that tells what is wrong with one."""

from __future__ import annotations

import re

import pytest

from mm_assets.graph import ROW_CHECKS
from mm_assets.graph.assets import with_plugins
from mm_assets_tests.test_plugins import Module, module

__all__ = ["module"]  # the fixture

CHECK = """
from mm_assets.graph import Check, ShardCheck

def fine(shard):
    return Check("fine", True)

CHECKS = {"final_tars": [ShardCheck("fine", fine)]}
"""


def test_checks_of_a_plugin_follow_ours(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM_PLUGINS", module(CHECK))
    assert [check.name for check in with_plugins("final_tars", ROW_CHECKS)] == [
        *(check.name for check in ROW_CHECKS), "fine",
    ]  # fmt: skip
    assert with_plugins("curated_parquet", ROW_CHECKS) == ROW_CHECKS


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("CHECKS = [1]", "CHECKS must be a dict of checks by asset"),
        (
            CHECK.replace('"final_tars"', '"tars"'),
            "'tars' in CHECKS is none of curated_parquet, filtered_parquet",
        ),
        (CHECK.replace('ShardCheck("fine", fine)', "fine"), "in CHECKS is no ShardCheck"),
        (
            CHECK.replace('[ShardCheck("fine", fine)]', "fine"),
            "CHECKS['final_tars'] must be a list of checks",
        ),
        (CHECK.replace('"fine"', '"ledger_balance"'), "final_tars has a check 'ledger_balance' already"),
        (CHECK.replace('"fine"', '"zero_loss"'), "final_tars has a check 'zero_loss' already"),
    ],
)
def test_a_check_that_does_not_fit_is_one_line(
    code: str, line: str, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(code)
    monkeypatch.setenv("MM_PLUGINS", name)
    with pytest.raises(ValueError, match=f"^MM_PLUGINS: module '{name}': .*{re.escape(line)}"):
        with_plugins("final_tars", ROW_CHECKS)
