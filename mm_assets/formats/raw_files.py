"""The files of raw shards: tars, or Parquet."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from mm_assets.formats.webdataset.layout import TAR_SUFFIXES

PARQUET_SUFFIXES = (".parquet",)
RAW_SUFFIXES = (*TAR_SUFFIXES, *PARQUET_SUFFIXES)


def is_parquet(uri: str) -> bool:
    """Whether a file is a Parquet file by its name."""
    return uri.lower().endswith(PARQUET_SUFFIXES)


def tars_first(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that a folder or pattern stands for, and the Parquet files that are passed over: all of them
    where there is a tar.

    Exporters of tars (img2dataset, for one) write what they know of each tar in a Parquet file beside it.
    """
    if not any(file.lower().endswith(TAR_SUFFIXES) for file in files):
        return list(files), []
    passed_over = [file for file in files if is_parquet(file)]
    return [file for file in files if file not in set(passed_over)], passed_over


def passed_over_line(location: str, files: Sequence[str]) -> str:
    """The line that tells of Parquet files that are not read."""
    many = f"{len(files)} Parquet files" if len(files) > 1 else "1 Parquet file"
    return f"{location}: {many} beside tars passed over, such as {posixpath.basename(files[0])}; name *.parquet to read them"
