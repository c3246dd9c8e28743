"""Public names of `mm_assets`, importable from here, too; the data model is in `mm_assets.model`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mm_assets import MODULES
from mm_assets.model.errors import explained

# Names of caches and paired tars, such as `Image`, would hide those of other libraries.
_NOT_STARRED = ("mm_assets.formats.arrow_cache", "mm_assets.formats.paired")
__all__ = [name for name, module in MODULES.items() if not module.startswith(_NOT_STARRED)]


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


if TYPE_CHECKING:
    from mm_assets import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return public_name(__name__, name)
