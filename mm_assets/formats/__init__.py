"""Formats: bytes in, bytes out.

The public names of `mm_assets` can be imported from here, too, but for `materialize`, which is a module
here. Type checkers know them in `mm_assets`.
"""

from __future__ import annotations

from typing import Any

from mm_assets import MODULES
from mm_assets.interleaved import public_name

__all__ = [name for name in MODULES if name != "materialize"]  # a module here


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
