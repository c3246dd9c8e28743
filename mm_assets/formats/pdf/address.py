"""Addresses of shards of PDFs: one URL for some locations, with a tar for each folder of PDFs in them."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from urllib.parse import urlencode

from mm_assets.formats.error_lines import is_utf8, not_utf8
from mm_assets.formats.file_stamps import existing_files
from mm_assets.formats.listing import Expansion, expand, pairs_of_url
from mm_assets.formats.partitions import partition_name, root_of_locations
from mm_assets.formats.pdf.names import BLOCKS_SUFFIX, PDF_SUFFIXES, blocks_beside, is_block_file, is_pdf
from mm_assets.formats.pdf.source import PdfSource
from mm_assets.formats.storage import absolute, filesystem, is_remote
from mm_assets.formats.tar.suffixes import TAR_SUFFIXES
from mm_assets.formats.webdataset.layout import PDF_PROTOCOL
from mm_assets.interleaved.errors import DataError

_SUFFIXES = (*PDF_SUFFIXES, *TAR_SUFFIXES)
_SUFFIXES_WITH_BLOCKS = (*_SUFFIXES, BLOCKS_SUFFIX)
_PREFIX = "pdf="
_LOCATION = "at"
_END = "as", "folder"  # so that no address ends as the name of a file does


@dataclass(frozen=True)
class PdfAddress:
    """Locations of PDFs: files, folders (at any depth), patterns, brace lists or URLs.

    Each folder with PDFs in it is a shard, and so is each tar. In a folder, tars only count where there are
    no PDFs.
    """

    places: tuple[str, ...]

    @property
    def url(self) -> str:
        """The address as a URL: a folder with a tar for each shard."""
        pairs = [*((_LOCATION, place) for place in self.places), _END]
        return f"{PDF_PROTOCOL}://{urlencode(pairs)}"

    @classmethod
    def parse(cls, token: str) -> PdfAddress:
        """Return the address whose `url` has ``token`` after its scheme."""
        pairs = pairs_of_url(PDF_PROTOCOL, token, f"{_PREFIX}FOLDER")
        return cls(tuple(place for _, place in pairs[:-1]))

    def names(self) -> dict[str, list[PdfSource]]:
        """Return the sources of each shard by its name, sorted.

        A folder is called as its path below the locations' common folder, and that folder itself by its own
        name; a tar as its path without suffix.

        Raises:
            FileNotFoundError: a location has no PDFs.
            DataError: two folders would have the same name.
        """
        root = _path(root_of_locations(self.places, _SUFFIXES))
        files = sorted({file for place in self.places for file in _found(place).files})
        with_blocks = existing_files(map(blocks_beside, filter(is_pdf, files)))
        shards: dict[str, list[PdfSource]] = {}
        origins: dict[str, str] = {}
        for file in files:
            name, origin = _shard_of(_path(file), root)
            if origins.setdefault(name, origin) != origin:
                raise DataError(
                    f"{origins[name]} and {origin} would both become partition {name!r}: rename one"
                )
            blocks = blocks_beside(file) if is_pdf(file) else None
            source_name = f"{name}/{posixpath.basename(file)}"
            source = PdfSource(file, source_name, blocks if blocks in with_blocks else None)
            shards.setdefault(name, []).append(source)
        return dict(sorted(shards.items()))

    def passed_over(self) -> list[str]:
        """Return a line for everything in the locations that looks like data, but is not read."""
        lines = [line for place in self.places for line in _found(place).passed_over]
        return [*dict.fromkeys(lines), *self._blocks_without_pdf()]

    def _blocks_without_pdf(self) -> list[str]:
        """Return one line on the block files in the locations that belong to no PDF; none without."""
        found = [expand(place, _SUFFIXES_WITH_BLOCKS).files for place in self.places]
        files = {file for files in found for file in files if is_utf8(file)}
        used = {blocks_beside(file) for file in files if is_pdf(file)}
        lost = sorted(file for file in files - used if is_block_file(file))
        if not lost:
            return []
        which = lost[0] if len(lost) == 1 else f"{len(lost)} block files, the first of them {lost[0]}"
        return [f"{which}: not read: no PDF of this name beside it (upper and lower case count)"]


def pdf_location(item: str) -> str | None:
    """Return the location of PDFs that an item names: ``pdf=docs``, or what ends in ``.pdf``; else None."""
    if item.startswith(_PREFIX):
        return absolute(item.removeprefix(_PREFIX))
    return absolute(item) if is_pdf(item) and not item.startswith(f"{PDF_PROTOCOL}://") else None


def pdf_files_of(url: str) -> dict[str, str]:
    """Return the original files of a tar that is made of PDFs, by their names in locators."""
    scheme = f"{PDF_PROTOCOL}://"
    if not url.startswith(scheme):
        return {}
    token, _, name = url.removeprefix(scheme).partition("/")
    sources = PdfAddress.parse(token).names().get(name.removesuffix(".tar"), [])
    return {name: f"{scheme}{token}/{name}" for source in sources for name in source.files}


def _path(location: str) -> str:
    """Return the path of a file in its file system, as URLs of one store may be written in several ways."""
    return filesystem(location)[1] if is_remote(location) else location


def _shard_of(file: str, root: str) -> tuple[str, str]:
    """Return the name of a file's shard, and what the shard is made of: a folder of PDFs, or a tar."""
    if not is_pdf(file):
        return partition_name(file, root), file
    folder = posixpath.dirname(file)
    below = folder[len(root) :] if folder.startswith(root) else folder
    return below.strip("/") or posixpath.basename(root), folder


def _found(place: str) -> Expansion:
    """Return the PDFs of a location; where it has none, its tars."""
    found = expand(place, _SUFFIXES)
    named = [file for file in found.files if is_utf8(file)]
    pdfs = [file for file in named if is_pdf(file)]
    tars = [file for file in named if file.lower().endswith(TAR_SUFFIXES)]
    if not (pdfs or tars):
        raise FileNotFoundError(f"{place}: no .pdf file, and no tar of them")
    unreadable = [not_utf8(file) for file in found.files if not is_utf8(file)]
    return Expansion(pdfs or tars, [*found.passed_over, *unreadable])
