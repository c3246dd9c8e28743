"""Pictures as Markdown that the UI shows: data URIs, small enough to be shown without a click.

The UI (Dagster 1.13.27) shows a Markdown value of fewer than 1,000 characters in its place, and a longer one
behind a click. The description of an event may be longer.
"""

from base64 import b64encode
from typing import Final
from urllib.parse import quote

INLINE: Final = 999
"""Characters of Markdown that are shown without a click."""

# Within <…>, all but these are encoded: Markdown reads & and \ itself, and an unescaped > ends the address.
_PLAIN: Final = " !$'*+,-./:;=?@^_`{|}~"


def image(data: bytes, media_type: str) -> str:
    """Return a picture as Markdown."""
    return f"![](data:{media_type};base64,{b64encode(data).decode('ascii')})"


def svg_image(svg: str) -> str:
    """Return an SVG as Markdown: percent-encoded, which is a quarter shorter than base64."""
    return f"![](<data:image/svg+xml,{quote(svg, safe=_PLAIN)}>)"
