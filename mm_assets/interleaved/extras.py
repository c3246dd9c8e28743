"""Optional libraries, and the extra of this package that installs each.

Only this module knows them. Code imports such a library where it uses it, without a check: an import that
fails is explained where errors become lines.
"""

from __future__ import annotations

from importlib.util import find_spec

from mm_assets.interleaved.errors import MmAssetsError

__all__ = ["MissingExtra"]

# Module that cannot be imported -> the feature that needs it, its package, our extra.
_EXTRAS = {
    "adlfs": ("Azure Blob Storage", "adlfs", "azure"),
    "apprise": ("Sending alerts", "apprise", "dagster"),
    "cv2": ("A score of pixels", "opencv-python-headless", "scores"),
    "dagster": ("The graph", "dagster", "dagster"),
    "duckdb": ("A condition over scores", "duckdb", "scores"),
    "gcsfs": ("Google Cloud Storage", "gcsfs", "gcs"),
    "lance": ("Lance", "pylance", "lance"),
    "pdqhash": ("The perceptual hash", "pdqhash", "scores"),
    "py3langid": ("Language detection", "py3langid", "scores"),
    "pypdfium2": ("PDF", "pypdfium2", "pdf"),
    "ray": ("A run on a Ray cluster", "ray", "ray"),
    "s3fs": ("S3", "s3fs", "s3"),
    "torch": ("CLIP", "torch", "clip"),
    "transformers": ("CLIP", "transformers", "clip"),
    "zxingcpp": ("The area of QR codes", "zxing-cpp", "scores"),
}


class MissingExtra(MmAssetsError, ImportError, ValueError):
    """A required library is not installed; the message names the extra that installs it.

    It is a ``ValueError``, too, like every error that users can fix: commands and runs report it in one line.
    """


def explained(error: ImportError) -> ImportError:
    """Return `MissingExtra` for a library that an extra installs; any other error as it is.

    The error's cause is checked as well: fsspec raises its own error from that of the import.
    """
    if isinstance(error, MissingExtra):
        return error
    for found in (error, error.__cause__):
        if isinstance(found, ModuleNotFoundError) and found.name in _EXTRAS:
            what, package, extra = _EXTRAS[found.name]
            return MissingExtra(f"{what} needs {package}: pip install 'mm-assets[{extra}]'", name=found.name)
    return error


def require(*modules: str) -> None:
    """Raise `MissingExtra` for the first of some libraries that is not installed; none is imported."""
    for module in modules:
        if find_spec(module) is None:
            raise explained(ModuleNotFoundError(f"No module named {module!r}", name=module))
