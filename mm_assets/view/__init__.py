"""Looking at data: one sample, a preview of filters, the report on a data set. Here are the pages of all.

They are self-contained HTML, with images in them, and pictures as Markdown for the UI.

* `page`: the frame of a page: styles, a strict content security policy, escaping.
* `picture`: an image of the data as a data URI, the file itself or a scaled `preview` of it.
* `image` and `svg_image`: pictures as Markdown that the UI shows without a click. The UI (Dagster 1.13.27)
  shows a Markdown value of fewer than 1,000 characters (`INLINE`) in its place, and a longer one behind a
  click. The description of an event may be longer.
"""

from __future__ import annotations

import base64
import io
import warnings
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import numpy as np

from mm_assets.formats.images import ImageInfo
from mm_assets.formats.images.decode import opened
from mm_assets.model.errors import DecompressionBomb, ImageError
from mm_assets.model.errors import html_text as text

if TYPE_CHECKING:
    from PIL.Image import Image


# Even if text of the data came through as markup, the browser would load and run nothing.
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'"
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --bad: #b3261e; --flag: #9a6700; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1, h2 { overflow-wrap: anywhere; line-height: 1.25; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p, pre, dd, td { overflow-wrap: anywhere; }
.text { white-space: pre-wrap; margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem .25rem 0; text-align: start; }
th, td { vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
img { display: block; max-width: 100%; max-height: 30rem; height: auto; width: auto; object-fit: contain; }
.note { color: var(--dim); font-size: .85rem; }
"""


def page(title: str, body: str, style: str = "") -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: HTML, in which all text of data has gone through `text`.
        style: further CSS.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def note(line: str) -> str:
    """Return a line of plain text as a remark."""
    return f'<p class="note" dir="auto">{text(line)}</p>'


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


MOST_EMBEDDED: Final = 1 << 20
"""Bytes of a file up to which a page has the file itself."""

_SHOWN_BY_BROWSERS: Final = frozenset({"jpg", "png", "webp", "gif"})
_LARGEST: Final = 50_000_000  # pixels: to decode them takes 200 MB, here or in the browser
PREVIEW_SIDE: Final = 1024
"""Pixels of the longer side of a preview."""
_QUALITY: Final = 80


@dataclass(frozen=True)
class Picture:
    """What a page shows of an image.

    Attributes:
        uri: data URI; empty where it cannot be shown.
        note: what the picture is if it is not the file itself, or why there is none.
    """

    uri: str = ""
    note: str = ""

    def html(self, description: str) -> str:
        """Return an ``img`` element, if there is a picture, with the note below it."""
        shown = f'<img src="{self.uri}" alt="{text(description)}">' if self.uri else ""
        return shown + (f'<p class="note">{text(self.note)}</p>' if self.note else "")


def description_of(info: ImageInfo) -> str:
    """Return what an image is, for who cannot see it."""
    return f"{info.format} of {info.display_width}x{info.display_height} pixels"


def picture(
    data: memoryview, info: ImageInfo, most_embedded: int = MOST_EMBEDDED, side: int = PREVIEW_SIDE
) -> Picture:
    """Return an image for a page: the file itself if browsers show it and it is small, else a preview.

    Args:
        data: the file.
        info: its header, as `probe` found it. No other statement on its type is believed.
        most_embedded: bytes up to which the file itself is taken.
        side: pixels of a preview.
    """
    try:
        is_original = info.format in _SHOWN_BY_BROWSERS and len(data) <= most_embedded
        if not is_original:
            return preview(data, info, side)
        with opened(bytes(data), info.format, _LARGEST):  # refuses what is too expensive to decode
            return Picture(_data_uri(info.content_type, data))
    except DecompressionBomb as error:
        return Picture(note=f"not shown: {error}")
    except Exception as error:  # noqa: BLE001  plugins raise whatever their parser runs into
        return Picture(note=f"it cannot be shown: {' '.join(str(error).split()) or type(error).__name__}")


def preview(data: memoryview, info: ImageInfo, side: int = PREVIEW_SIDE) -> Picture:
    """Return an image scaled to at most ``side`` pixels, as WebP; of several frames the first.

    Raises:
        DecompressionBomb: it would be too expensive to decode.
        ImageError: it cannot be decoded.
    """
    from PIL import ImageOps

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        try:
            with opened(bytes(data), info.format, _LARGEST) as image:
                image.draft("RGB", (side, side))
                scaled: Image = ImageOps.exif_transpose(image)
                scaled = _eight_bits(scaled, side)
                scaled.thumbnail((side, side))
                output = io.BytesIO()
                scaled.save(output, "WEBP", quality=_QUALITY)
        except ImageError:
            raise
        except Exception as error:  # plugins raise whatever their parser runs into
            raise ImageError(" ".join(str(error).split()) or type(error).__name__) from error
    size = f"{scaled.width}x{scaled.height}"
    return Picture(
        _data_uri("image/webp", output.getbuffer()),
        f"a preview of {size}, as WebP; the file is not in this page",
    )


def _eight_bits(image: Image, side: int) -> Image:
    """Return an image in a mode that WebP has; of more bits a channel the range of values is stretched."""
    import PIL.Image

    if image.mode[0] in "IF":  # 16 or 32 bits: a plain conversion would cut them off, to white
        image = image.convert("F")
        image.thumbnail((side, side))
        values = np.nan_to_num(np.asarray(image, np.float64))
        values -= values.min()
        grey = values * (255 / (values.max() or 1))
        return PIL.Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.convert("RGBA" if has_alpha else "RGB")


def _data_uri(content_type: str, data: memoryview) -> str:
    return f"data:{content_type};base64,{base64.b64encode(data).decode('ascii')}"
