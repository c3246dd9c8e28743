"""Images of the data inside an HTML page, as data URIs: the file itself, or a scaled preview of it."""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from mm_assets.formats.images.decode import opened
from mm_assets.formats.images.errors import DecompressionBomb, ImageError
from mm_assets.formats.images.probe import ImageInfo
from mm_assets.pages.html_frame import text

if TYPE_CHECKING:
    from PIL.Image import Image

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
