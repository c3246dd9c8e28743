"""Libraries that the base install leaves out, and the line that says which extra brings one.

This is the one place that knows them. Code imports such a library where it uses it and asks nothing
beforehand: an import that fails is explained where errors become lines.
"""

from __future__ import annotations

from mm_assets.interleaved.errors import MmAssetsError

__all__ = ["MissingExtra"]

# The module that cannot be imported -> what needs it, the package of the registry, our extra.
_EXTRAS = {
    "dagster": ("The graph", "dagster", "dagster"),
    "gcsfs": ("Google Cloud Storage", "gcsfs", "gcs"),
    "lance": ("Lance", "pylance", "lance"),
    "s3fs": ("S3", "s3fs", "s3"),
}


class MissingExtra(MmAssetsError, ImportError, ValueError):
    """A library is needed that is not installed; the message says which extra brings it.

    It is a ``ValueError``, too, like all that users can mend: commands and runs tell it in one line.
    """


def explained(error: ImportError) -> ImportError:
    """`MissingExtra` for a library that an extra brings; any other error as it is.

    fsspec raises its own error from that of the import, so that the cause is looked at as well.
    """
    if isinstance(error, MissingExtra):
        return error
    for found in (error, error.__cause__):
        if isinstance(found, ModuleNotFoundError) and found.name in _EXTRAS:
            what, package, extra = _EXTRAS[found.name]
            return MissingExtra(f"{what} needs {package}: pip install 'mm-assets[{extra}]'", name=found.name)
    return error
