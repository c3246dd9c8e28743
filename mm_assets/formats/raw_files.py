"""Files of raw shards: tars, or Parquet."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from mm_assets.formats.tar.suffixes import TAR_SUFFIXES

PARQUET_SUFFIXES = (".parquet",)
RAW_SUFFIXES = (*TAR_SUFFIXES, *PARQUET_SUFFIXES)


def is_parquet(uri: str) -> bool:
    """Return whether a file is a Parquet file by its name."""
    return uri.lower().endswith(PARQUET_SUFFIXES)


def tars_first(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the files of a folder or pattern into those to read and the Parquet files beside tars.

    Where there is a tar, all Parquet files are passed over: exporters of tars (img2dataset, for one) write
    the metadata of each tar to a Parquet file beside it.
    """
    if not any(file.lower().endswith(TAR_SUFFIXES) for file in files):
        return list(files), []
    passed_over = [file for file in files if is_parquet(file)]
    return [file for file in files if not is_parquet(file)], passed_over


def passed_over_line(location: str, files: Sequence[str]) -> str:
    """Return the line about Parquet files that are not read."""
    many = f"{len(files)} Parquet files" if len(files) > 1 else "1 Parquet file"
    example = posixpath.basename(files[0])
    return f"{location}: {many} beside tars passed over, such as {example}; name *.parquet to read them"
