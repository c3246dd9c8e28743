"""Accounting record of WebDataset tars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mm_assets.accounting.canonical.accounted_format import AccountedFormat, OutputProblems, Rows, SampleQuery
from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.index_files import FOLDER_FILES, folder_problems, has_index, tar_files
from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.raw import raw_parts
from mm_assets.accounting.canonical.tar_digest import derive_tar
from mm_assets.accounting.canonical.webdataset import is_ours, tar_offsets, tar_parts
from mm_assets.accounting.lookup import in_tar
from mm_assets.formats.storage import size_of
from mm_assets.formats.webdataset.layout import MADE_WHEN_OPENED

_END_BLOCKS = 1024  # bytes; of a tar


def _parts(source: CanonicalLocation) -> Iterator[RowPart]:
    # What could not be made has no rows in such a tar: our reader says why.
    if str(source.uri).startswith(MADE_WHEN_OPENED):
        return raw_parts(source)
    return tar_parts(str(source.uri), lambda: raw_parts(source), source.options)


def _states_types(source: CanonicalLocation) -> bool:
    """Return whether the tar is ours; the types of a raw tar are inferred from its values."""
    return not source.uri or is_ours(source.uri, source.options)


def _examine(uri: str, found: Derived) -> OutputProblems:
    """Check the files beside a tar from which clients know its samples."""
    offsets, nbytes = found.offsets or tar_offsets(uri), size_of(uri)
    if unknown := nbytes - offsets[-1] - _END_BLOCKS:
        return OutputProblems((f"{uri}: {unknown} bytes belong to no sample",))
    if not has_index(uri, offsets):  # the tar or its index has changed
        return OutputProblems((f"{uri}.idx: not where the samples of the tar begin and end",))
    return OutputProblems(beside=tuple(folder_problems(uri, found.samples, nbytes)))


def _find_sample(query: SampleQuery) -> Mapping[str | None, Rows]:
    return {name: in_tar(query.uri_of(name), query.sample_id, query.options) for name in query.partitions}


ACCOUNTED = AccountedFormat(
    library="webdataset.tariterators",
    parts=_parts,
    states_types=_states_types,
    digest=derive_tar,
    examine=_examine,
    find_sample=_find_sample,
    is_ours=is_ours,
    files=lambda uri, _: tar_files(uri),
    folder_files=FOLDER_FILES,
)
