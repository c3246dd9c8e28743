"""Modules that `MM_PLUGINS` names: what they add, and the line that tells what is wrong with one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mm_assets.filters.measures import known_measures
from mm_assets.filters.registry import FILTERS, filters_of, known_filters
from mm_assets.settings import Settings, describe
from mm_assets.settings_file import PluginError, load_plugins

FILTER = """
from dataclasses import dataclass
from mm_assets.extend import ScoreFilter, minimum, setting

@dataclass(frozen=True)
class Large(ScoreFilter):
    name = "large"
    min_bytes: int = minimum("file_size", int, "least bytes")
    def verdict(self, score):
        return None

FILTERS = (Large,)
"""
Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Write a module under a name of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(code: str) -> str:
        name = f"plugin_of_test_{len(list(tmp_path.iterdir()))}_{abs(hash(tmp_path))}"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_without_the_variable_there_are_none() -> None:
    assert load_plugins({}) == load_plugins({"MM_PLUGINS": " , "}) == ()
    assert known_filters(()) == FILTERS


def test_settings_of_a_plugin_are_settings(module: Module) -> None:
    name = module(FILTER)
    environment = {"MM_PLUGINS": f" {name},{name}", "MM_MIN_FILE_SIZE": "7"}
    settings = Settings.load(environment)
    assert settings.plugins == (name, name)
    (made,) = filters_of(settings.filters, settings.filter_values())
    assert (made.name, made.min_bytes) == ("large", 7)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="^MM_MIN_FILE_SIZE: no such setting"):
        Settings.load({"MM_MIN_FILE_SIZE": "7"})
    with pytest.raises(
        ValueError, match="^MM_MIN_FILE_SIZ: no such setting; the nearest is MM_MIN_FILE_SIZE"
    ):
        Settings.load({"MM_PLUGINS": name, "MM_MIN_FILE_SIZ": "7"})
    assert "MM_MIN_FILE_SIZE" not in describe()


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import no_such_package", "cannot be imported: No module named 'no_such_package'"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("x = (", "cannot be imported: SyntaxError: '(' was never closed"),
        ("x = 1", "it has none of FILTERS, MEASURES, CHECKS, SOURCES"),
        ("FILTERS = int", "FILTERS must be a list, not <class 'int'>"),
        ("FILTERS = (5,)", "5 in FILTERS is no class of filters: derive it from ScoreFilter"),
        (FILTER.replace('name = "large"', ""), "filter Large needs a name of lower-case letters"),
        (FILTER.replace('"large"', '"Large one"'), "filter Large needs a name of lower-case letters"),
        (FILTER.replace("def verdict", "def other"), "filter Large has no verdict"),
        (FILTER.replace("@dataclass(frozen=True)", ""), "filter Large must be a dataclass"),
        (FILTER.replace("    min_bytes", "    # min_bytes"), "filter Large has no settings"),
        (FILTER.replace("    def", "    more: int\n    def"), "cannot be imported: TypeError: non-default"),
        (FILTER.replace('"large"', '"image_size"'), "Large: the name 'image_size' is taken by mm_assets"),
        (FILTER.replace('"file_size"', '"image_side"'), "Large: the setting 'min_image_side' is taken"),
        (FILTER.replace("int,", "dict,"), "TypeError: bound 'min_file_size' is a float or an int, not"),
    ],
)  # fmt: skip
def test_a_filter_that_does_not_fit_is_one_line(code: str, line: str, module: Module) -> None:
    name = module(code)
    with pytest.raises(PluginError, match=f"^MM_PLUGINS: module '{name}'.*{re.escape(line)}") as raised:
        known_filters(load_plugins({"MM_PLUGINS": name}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "no_such_plugin",
            "module 'no_such_plugin' cannot be imported: No module named 'no_such_plugin'; install it",
        ),
        ("a b", "'a b' is not the name of a module; separate names by commas"),
        ("../evil", "'../evil' is not the name of a module"),
    ],
)
def test_names_that_are_no_modules(text: str, line: str) -> None:
    with pytest.raises(PluginError, match=f"^MM_PLUGINS: {re.escape(line)}"):
        load_plugins({"MM_PLUGINS": text})


def test_a_setting_of_the_graph_is_taken(module: Module) -> None:
    name = module(FILTER.replace('minimum("file_size", int,', 'setting("workers", int, 0,'))
    with pytest.raises(ValueError, match=f"^filter 'large' of {name}: MM_WORKERS is taken"):
        Settings.load({"MM_PLUGINS": name})


@pytest.mark.parametrize(
    "taken", ["width", "longer_side", "error", "decode_error", "sample_id", "words", "sha256"]
)
def test_a_measure_cannot_take_the_column_of_another(
    taken: str, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from dataclasses import dataclass
import pyarrow as pa
from mm_assets.filters.measure import ImageMeasure

@dataclass(frozen=True)
class Mine(ImageMeasure):
    name, type, version, meaning = "TAKEN", pa.string(), "1", "x"
    def measure(self, image):
        return None

MEASURES = (Mine(),)
"""
    monkeypatch.setenv("MM_PLUGINS", module(code.replace("TAKEN", taken)))
    with pytest.raises(PluginError, match=f"measure '{taken}': the name is taken$"):
        known_measures()
