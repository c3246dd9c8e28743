"""Addresses of raw shards that are made when they are opened: of modalities, and of PDFs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mm_assets.formats.paired.raw.address import PairedAddress, modality_of, parts_of
from mm_assets.formats.pdf.address import PdfAddress, pdf_files_of, pdf_location
from mm_assets.formats.storage import absolute
from mm_assets.interleaved.notices import warn_user


def made_address(items: Sequence[str], missing_keys: str) -> PairedAddress | PdfAddress | None:
    """Return the address that items stand for together; None where they are files of raw shards as such.

    Args:
        items: locations as users write them.
        missing_keys: see `PairedAddress`.

    Raises:
        ValueError: modalities or PDFs are mixed with other locations, or a modality is named twice.
    """
    pdfs = [found for item in items if (found := pdf_location(item)) is not None]
    if pdfs and len(pdfs) == len(items):
        return PdfAddress(tuple(pdfs))
    named = [pair for item in items if (pair := modality_of(item)) is not None]
    if pdfs and len(named) < len(items):
        raise ValueError(f"raw shards: PDFs and other locations cannot be mixed: {' '.join(items)}")
    if named and len(named) < len(items):
        raise ValueError(
            f"raw shards: modalities ({named[0][0]}=...) and other locations cannot be mixed: "
            f"{' '.join(items)}"
        )
    if not named:
        return None
    if repeated := [name for name, count in Counter(name for name, _ in named).items() if count > 1]:
        raise ValueError(f"raw shards: modality {repeated[0]!r} is named twice")
    return PairedAddress(dict(named), missing_keys)


def location_of(item: str) -> str:
    """Return the absolute path or URL of an input; of PDFs, the URL of the tars made of them.

    Warns of what looks like data beside the PDFs, but is not read.

    Raises:
        FileNotFoundError: it names PDFs, and there are none.
    """
    pdfs = pdf_location(item)
    if pdfs is None:
        return absolute(item)
    address = PdfAddress((pdfs,))
    address.names()
    for line in address.passed_over():
        warn_user(line)
    return address.url


def originals_of(url: str) -> dict[str, str]:
    """Return the files that a raw shard made when opened is made of, by their names in locators."""
    return parts_of(url) | pdf_files_of(url)
