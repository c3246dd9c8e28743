"""Curated, filtered, training-ready interleaved image-text datasets, every item accounted for.

All public names are imported from here: ``from mm_assets import InterleavedParquetReader``. Each is loaded
when it is first used, so that ``import mm_assets`` loads no library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_assets.public_names import MODULES

__version__ = "0.1.0"
__all__ = [*MODULES]

if TYPE_CHECKING:
    from mm_assets.public_names import *  # noqa: F403
else:  # hidden from type checkers: they would take any name for a public one

    def __getattr__(name: str) -> Any:
        from mm_assets.interleaved import public_name

        return public_name(__name__, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *MODULES})
