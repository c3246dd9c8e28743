"""Plugins: modules of users that add filters, measures, checks and sources, and how they are loaded.

Only the setting ``MM_PLUGINS`` names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from mm_assets.model.errors import MmAssetsError
from mm_assets.settings_file import given_settings
from mm_assets.storage.errors import error_line

VARIABLE = "MM_PLUGINS"
LISTS = ("FILTERS", "MEASURES", "CHECKS", "SOURCES")


class PluginError(MmAssetsError, ValueError):
    """A module that ``MM_PLUGINS`` names cannot be used; the message names it."""


def load_plugins(given: Mapping[str, str] | None = None) -> tuple[ModuleType, ...]:
    """Import the modules that ``MM_PLUGINS`` names, separated by commas.

    Args:
        given: texts of settings by variable; None: those that the user has set.

    Raises:
        PluginError: in one line that names the module, for one that cannot be imported or adds nothing.
    """
    text = (given_settings() if given is None else given).get(VARIABLE, "")
    return tuple(_load(name) for name in dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def _error(line: str) -> PluginError:
    """Return an error that names the setting as the user knows it: variable, or file and key."""
    return PluginError(f"{given_settings().place(VARIABLE)}: {line}")


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
    if not any(hasattr(module, known) for known in LISTS):
        raise plugin_fault(module, f"it has none of {', '.join(LISTS)}")
    return module
