"""TIFF tags that the split has to interpret; all others are copied as they are."""

from __future__ import annotations

from typing import Final

WIDTH: Final = 256
HEIGHT: Final = 257
BITS_PER_SAMPLE: Final = 258
COMPRESSION: Final = 259
PHOTOMETRIC: Final = 262
STRIP_OFFSETS: Final = 273
ORIENTATION: Final = 274
SAMPLES_PER_PIXEL: Final = 277
ROWS_PER_STRIP: Final = 278
STRIP_LENGTHS: Final = 279
PLANAR: Final = 284
SUB_IFDS: Final = 330

# Offsets and lengths of payload: strips, tiles, and the one stream of an old-style JPEG or an EXIF thumbnail.
PAYLOADS: Final = ((STRIP_OFFSETS, STRIP_LENGTHS), (324, 325), (513, 514))
PAYLOAD_OFFSETS: Final = frozenset(offsets for offsets, _ in PAYLOADS)
# SubIFDs, GlobalParametersIFD, EXIF, GPS, Interoperability.
DIRECTORY_TAGS: Final = frozenset({SUB_IFDS, 400, 34665, 34853, 40965})
UNSUPPORTED: Final = {
    288: "FreeOffsets (tag 288) point at unused parts of the file",
    519: "old-style JPEG quantization tables (tag 519) lie outside the directory",
    520: "old-style JPEG DC tables (tag 520) lie outside the directory",
    521: "old-style JPEG AC tables (tag 521) lie outside the directory",
    50933: "ExtraCameraProfiles (tag 50933) point at files within the file",
}
PARSED: Final = frozenset(
    {WIDTH, HEIGHT, ORIENTATION, BITS_PER_SAMPLE, COMPRESSION, PHOTOMETRIC}
    | {SAMPLES_PER_PIXEL, ROWS_PER_STRIP, PLANAR}
    | {tag for pair in PAYLOADS for tag in pair} | DIRECTORY_TAGS | UNSUPPORTED.keys()
)  # fmt: skip
