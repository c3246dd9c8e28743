"""Data model of interleaved image-text documents.

The public names of `mm_assets` can be imported from here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_assets.public_names import MODULES

# Names of caches and paired tars, such as `Image`, would hide those of other libraries.
_NOT_STARRED = ("mm_assets.formats.arrow_cache.", "mm_assets.formats.paired.")
__all__ = [name for name, module in MODULES.items() if not module.startswith(_NOT_STARRED)]

if TYPE_CHECKING:
    from mm_assets.public_names import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        from mm_assets.interleaved.facade import public_name

        return public_name(__name__, name)
