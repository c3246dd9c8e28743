"""Data model of interleaved image-text documents.

The public names of `mm_assets` can be imported from here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_assets.public_names import MODULES

__all__ = [*MODULES]

if TYPE_CHECKING:
    from mm_assets.public_names import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        from mm_assets.interleaved.facade import public_name

        return public_name(__name__, name)
