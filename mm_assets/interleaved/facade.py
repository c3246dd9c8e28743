"""Public names, imported when they are first asked for (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mm_assets.interleaved.extras import explained
from mm_assets.public_names import MODULES as MODULES


def public_name(package: str, name: str) -> Any:
    """Return a public name for one of the packages that pass on all of them.

    A submodule of that name comes first: ``mm_assets.formats.materialize`` is a module.

    Raises:
        AttributeError: There is no such name.
        MissingExtra: Its module needs a library that is not installed.
    """
    module = MODULES.get(name)
    if module is None or module == f"{package}.{name}":
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise explained(error) from None
