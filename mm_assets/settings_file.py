"""The settings file ``mm_assets.toml`` in the working directory, and variables of the environment over it.

Plugins, modules of users that add filters, measures, checks and sources, are those that the setting
``MM_PLUGINS`` names: `load_plugins`.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mm_assets.model.errors import MmAssetsError
from mm_assets.storage import S3_OPTIONS, S3_SCHEMES, StoreTable, is_store, repeated_location
from mm_assets.storage.errors import error_line, located
from mm_assets.storage.files import regular_file

FILE = "mm_assets.toml"
PREFIX = "MM_"
# Settings whose items may hold commas: they are separated by whitespace, as in a shell.
SPACED = ("MM_RAW_SHARDS", "MM_ALERTS", "MM_CLIP_NETWORKS")
_NO_NUMBER = 10**100  # more than any setting takes, less than `repr` refuses
_LONG = re.compile(r"\d[\d_]{4299}")  # more digits than `int` takes
_STORES = "stores"
_EXAMPLE = f'[{_STORES}."s3://bucket"]'


class SettingsFileError(MmAssetsError, ValueError):
    """The settings file cannot be used; the message names it."""


class GivenSettings(dict[str, str]):
    """Texts of settings by variable.

    Attributes:
        of_file: variables whose text is that of the settings file.
        lists: those of them that are lists there.
        stores: options of object stores by location, from the file alone.
    """

    def __init__(
        self,
        of_file: Mapping[str, str],
        of_environment: Mapping[str, str],
        lists: Iterable[str] = (),
        stores: StoreTable | None = None,
    ) -> None:
        overriding = {name: text for name, text in of_environment.items() if name.startswith(PREFIX)}
        super().__init__({**of_file, **overriding})
        self.of_file = frozenset(of_file).difference(overriding)
        self.lists = self.of_file.intersection(lists)
        self.stores: StoreTable = stores or {}

    def place(self, name: str) -> str:
        """Return how the user knows a setting: its variable, or file and key."""
        return f"{FILE}: {name.removeprefix(PREFIX).lower()}" if name in self.of_file else name


def given_settings(environment: Mapping[str, str] | None = None) -> GivenSettings:
    """Return what the user has set.

    Args:
        environment: variables to read, without a file; None: those of the process, over the settings file.

    Raises:
        SettingsFileError: in one line, for a file that is no TOML, or a value that is no setting's.
    """
    if environment is not None:
        return GivenSettings({}, environment)
    values = _read(Path(FILE))
    stores = _stores(Path(FILE), values.pop(_STORES, {}))
    texts = {PREFIX + key.upper(): _text(Path(FILE), key, value) for key, value in values.items()}
    lists = [PREFIX + key.upper() for key, value in values.items() if isinstance(value, list)]
    return GivenSettings(texts, os.environ, lists, stores)


def _stores(path: Path, tables: Any) -> StoreTable:
    """Return the tables of object stores, each option of which is known and a text."""
    if not isinstance(tables, dict):
        raise SettingsFileError(f"{path}: {_STORES} has tables, as {_EXAMPLE}")
    for location, options in tables.items():
        place = f'{path}: [{_STORES}."{location}"]'
        if "\0" in location or not is_store(location):
            raise SettingsFileError(f"{place}: not the URL of a bucket or a part of one, as {_EXAMPLE}")
        if not isinstance(options, dict):
            raise SettingsFileError(f"{place} must be a table")
        for name, value in options.items():
            if not isinstance(value, str):
                raise SettingsFileError(f"{place}: {name} must be text in quotation marks")
            if "\0" in value:
                raise SettingsFileError(f"{place}: {name} must have no null characters")
            if location.startswith(S3_SCHEMES) and name not in S3_OPTIONS:
                raise SettingsFileError(f"{place}: {name}: no such option; there are {', '.join(S3_OPTIONS)}")
        if ("aws_access_key_id" in options) != ("aws_secret_access_key" in options):
            raise SettingsFileError(f"{place}: aws_access_key_id and aws_secret_access_key belong together")
    if twice := repeated_location(tables):
        raise SettingsFileError(f"{path}: {' and '.join(twice)} are one location, and have two tables")
    return dict(tables)


def _read(path: Path) -> dict[str, Any]:
    try:
        with located(str(path)):
            text = Path(regular_file(str(path))).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise SettingsFileError(f"{path}: not UTF-8: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsFileError(f"{path}: {_toml_problem(text, str(error))}") from error
    except ValueError as error:  # of `int`, which names no line
        lines = enumerate(text.splitlines(), start=1)
        place = next((f" in line {number}" for number, line in lines if _LONG.search(line)), "")
        raise SettingsFileError(f"{path}: a number{place} has too many digits") from error
    except RecursionError as error:
        raise SettingsFileError(f"{path}: lists or tables are nested too deep") from error
    for key in values:
        name = key.lower().removeprefix(PREFIX.lower())
        if key != name:
            what = "without MM_ and in lower case" if key.upper().startswith(PREFIX) else "in lower case"
            raise SettingsFileError(f"{path}: {key}: settings are written {what}: {name}")
    return values


def _toml_problem(text: str, error: str) -> str:
    """Return what tomllib says, with the key that is given twice, or what usually helps."""
    if error.startswith("Cannot overwrite a value"):
        seen: set[str] = set()
        for number, line in enumerate(text.splitlines(), start=1):
            key = line.partition("=")[0].strip()
            if key in seen and "=" in line:
                return f"{key} is given twice, the second time in line {number}"
            seen.add(key)
    return f"{error}; write text in quotation marks"


def _text(path: Path, key: str, value: Any) -> str:
    """Return a value as its variable would hold it."""
    if not isinstance(value, list):
        return _item(path, key, value)
    items = [_item(path, key, item) for item in value]
    if PREFIX + key.upper() in SPACED:
        return " ".join(map(shlex.quote, items))
    if item := next((item for item in items if "," in item), None):
        raise SettingsFileError(f"{path}: {key}: {item!r} has a comma, which separates items")
    return ",".join(items)


def _item(path: Path, key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) >= _NO_NUMBER:
        raise SettingsFileError(f"{path}: {key}: a number has too many digits")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if key == "storage" and isinstance(value, dict):
        raise SettingsFileError(
            f"{path}: storage is the folder of all outputs; options of an object store go into {_EXAMPLE}"
        )
    kind = {bool: "true or false", dict: "a table", list: "a list in a list"}.get(type(value))
    kind = kind or str(value)
    raise SettingsFileError(f"{path}: {key} must be text, a number or a list of them, not {kind}")


PLUGINS = "MM_PLUGINS"
PLUGIN_LISTS = ("FILTERS", "MEASURES", "CHECKS", "SOURCES")


class PluginError(MmAssetsError, ValueError):
    """A module that ``MM_PLUGINS`` names cannot be used; the message names it."""


def load_plugins(given: Mapping[str, str] | None = None) -> tuple[ModuleType, ...]:
    """Import the modules that ``MM_PLUGINS`` names, separated by commas.

    Args:
        given: texts of settings by variable; None: those that the user has set.

    Raises:
        PluginError: in one line that names the module, for one that cannot be imported or adds nothing.
    """
    text = (given_settings() if given is None else given).get(PLUGINS, "")
    return tuple(_load(name) for name in dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def _error(line: str) -> PluginError:
    """Return an error that names the setting as the user knows it: variable, or file and key."""
    return PluginError(f"{given_settings().place(PLUGINS)}: {line}")


def plugin_fault(module: ModuleType, what: str) -> PluginError:
    """Return the error to raise for an invalid definition in a plugin."""
    return _error(f"module {module.__name__!r}: {what}")


def listed(module: ModuleType, name: str) -> Sequence[Any]:
    """Return what a plugin has in one of its lists.

    Raises:
        PluginError: it is not a list or tuple.
    """
    found = getattr(module, name, ())
    if not isinstance(found, list | tuple):
        raise plugin_fault(module, f"{name} must be a list, not {found!r}")
    return found


def _load(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise _error(f"{name!r} is not the name of a module; separate names by commas")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        hint = "; install it, or put its folder on PYTHONPATH" if error.name == name else ""
        raise _error(f"module {name!r} cannot be imported: {error}{hint}") from error
    except Exception as error:
        raise _error(f"module {name!r} cannot be imported: {error_line(error)}") from error
    if not any(hasattr(module, known) for known in PLUGIN_LISTS):
        raise plugin_fault(module, f"it has none of {', '.join(PLUGIN_LISTS)}")
    return module
