"""Formats: bytes in, bytes out.

The public names of `mm_assets` can be imported from here, too. Type checkers know them in `mm_assets`.
"""

from __future__ import annotations

from typing import Any

from mm_assets.interleaved.facade import MODULES, public_name

__all__ = [*MODULES]


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
