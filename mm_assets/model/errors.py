"""Exceptions, fault classes and warnings of the package.

* Exceptions: `MmAssetsError` is the base class of all that the package defines. `ImageError`,
  `DecompressionBomb` and `LosslessSplitError` are those of image files.
* Faults: the classes of faults as quarantine records name them, and `Fault`: what is wrong with one item.
* Warnings: attributed to the user's own line of code, and printed as one line each.
* Numbers of things in words, such as ``1 shard`` and ``2 shards``, the `nearest` of some names, and HTML of
  plain texts (`html_text`, `html_table`).
* Optional libraries, and the extra of this package that installs each. No other module knows them. Code
  imports such a library where it uses it, without a check: an import that fails is explained where errors
  become lines (`error_line`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

__all__ = ["DataError", "MissingExtra", "MmAssetsError", "ShardError"]


_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def warn_user(message: str) -> None:
    """Issue a ``UserWarning`` attributed to the nearest caller outside this package."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)


class OnScreen(Protocol):
    """A line on the terminal that is drawn over itself, as that of progress."""

    def clear(self) -> None: ...
    def redraw(self) -> None: ...


on_screen: list[OnScreen] = []


def show_warnings_as_lines(tell: Callable[[str], None] | None = None) -> None:
    """Tell each distinct warning of this process once, as one line, without file and code.

    The same holds for log records of libraries from level WARNING on, unless a handler is configured for
    them.

    Args:
        tell: gets its text. None: it is printed on stderr.
    """
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text in shown:
            return
        shown.add(text)
        if tell is None:
            write_line(warning_line(text))
        else:
            tell(text)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(record.getMessage())

    warnings.showwarning = show
    logging.lastResort = Lines(logging.WARNING)


def write_line(line: str) -> None:
    """Write a line to stderr, in one piece, as other processes write there as well.

    It goes above what is `on_screen`. A stderr that takes nothing (a full disk, a closed pipe) fails no work.
    """
    for drawn in on_screen:
        drawn.clear()
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
    for drawn in on_screen:
        drawn.redraw()


def warning_line(message: Warning | str) -> str:
    """Return the line that shows a warning."""
    return f"mm-assets: warning: {' '.join(str(message).split())}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with what is counted, such as ``1 shard`` and ``2 shards``.

    Args:
        one: the words after 1.
        many: those after any other number; None: ``one`` with an s.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"


_MOST_NAMED = 200  # data may have thousands of columns


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for a name that there is not: the nearest one that there is, else all of them."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=cutoff)
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"the nearest is {near[0]}" if near else f"there are {', '.join(known[:_MOST_NAMED])}{more}"


def first_and_more(names: Sequence[object]) -> str:
    """Return the first name, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "nothing"


# Characters that HTML has no place for, and those that reorder the text around them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]"
)


def html_text(value: str) -> str:
    """Return text for HTML, in an element or a quoted attribute.

    Control characters, and those that reverse the direction of what stands beside them, become visible.
    """
    visible = _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), value)
    return escape(visible.encode("utf-8", "backslashreplace").decode())


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], between: str = "") -> str:
    """Return a table of plain texts.

    Args:
        between: stands between the rows.
    """
    first = "".join(f"<th>{html_text(head)}</th>" for head in heads)
    cells = ("".join(f"<td>{html_text(cell)}</td>" for cell in row) for row in rows)
    others = "".join(f"{between}<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{others}{between}</tbody></table>"


class MmAssetsError(Exception):
    """Base class of all exceptions of this package.

    Each of them has a standard base as well (``ValueError`` for data, ``OSError`` for storage), so that code
    which catches those goes on working. Wrong arguments are plain ``ValueError`` or ``TypeError``.

    All of them pickle, whatever their constructors take: they cross from worker processes to the parent.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        args = super().__reduce__()[1]  # arguments of ``__new__``; an OSError keeps some of them elsewhere
        return _restored, (type(self), args, self.__dict__)


class DataError(MmAssetsError, ValueError):
    """Data is not as required; the message says where and why.

    Raised where no narrower class fits: for rows that are no items of samples, and for tars and caches whose
    parts do not fit together.
    """


class ShardError(MmAssetsError, ValueError):
    """A file cannot be read as interleaved data; the message names file, sample and field."""


def _restored(kind: type[MmAssetsError], args: tuple[Any, ...], state: dict[str, Any]) -> MmAssetsError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


BAD_JSON = "bad_json"
NOT_UTF8 = "not_utf8"
LONE_SURROGATE = "lone_surrogate"
NOT_AN_OBJECT = "not_an_object"
BAD_SAMPLE_ID = "bad_sample_id"
BAD_LAYOUT = "bad_layout"  # the json is sound, but its fields contradict each other or what they declare
DUPLICATE_ID = "duplicate_id"
MISSING_MEMBER = "missing_member"
# An item without content: no text, no bytes, no locator to fetch them by.
MISSING_CONTENT = "missing_content"
# A reference that does not lead to exactly one image: ambiguous, a broken link, a frame that does not exist.
DANGLING_REFERENCE = "dangling_reference"
UNDECODABLE_IMAGE = "undecodable_image"
DECOMPRESSION_BOMB = "decompression_bomb"
OVERSIZED_MEMBER = "oversized_member"
TRUNCATED_TAR = "truncated_tar"
DAMAGED_TAR = "damaged_tar"
DIGEST_MISMATCH = "digest_mismatch"  # the image is not the one whose sha256 or md5 its document declares
MISSING_MODALITY = "missing_modality"  # of paired shards: a key that one of the tars lacks
# A member with the name of a json that is not a regular file: a pipe, a sparse file.
UNREADABLE_MEMBER = "unreadable_member"
UNREADABLE_PDF = "unreadable_pdf"  # it is encrypted, cut, damaged, beyond the limits, or kills its reader
FETCH_FAILED = "fetch_failed"  # a locator that cannot be followed, or any error that came with the data
# A sound item of a sample with a fault elsewhere, where the policy keeps samples whole.
INCOMPLETE_SAMPLE = "incomplete_sample"
# Denied: a person asked for the item to be erased, or a hash list names its bytes. No fault of the data.
ERASED = "erased"
LISTED_HASH = "listed_hash"
DENIED = (ERASED, LISTED_HASH)
# Not faults of items: a member that is no sample and no image of one, and a TIFF frame without a reference.
UNREFERENCED_MEMBER = "unreferenced_member"
UNREFERENCED_FRAME = "unreferenced_frame"

FAULTS = (
    BAD_JSON,
    NOT_UTF8,
    LONE_SURROGATE,
    NOT_AN_OBJECT,
    BAD_SAMPLE_ID,
    BAD_LAYOUT,
    DUPLICATE_ID,
    MISSING_MEMBER,
    MISSING_CONTENT,
    DANGLING_REFERENCE,
    UNDECODABLE_IMAGE,
    DECOMPRESSION_BOMB,
    OVERSIZED_MEMBER,
    DIGEST_MISMATCH,
    TRUNCATED_TAR,
    DAMAGED_TAR,
    MISSING_MODALITY,
    UNREADABLE_MEMBER,
    UNREADABLE_PDF,
    FETCH_FAILED,
    INCOMPLETE_SAMPLE,
    *DENIED,
)

# Data files only store the message of an item's fault (column materialize_error). So the messages of a class
# begin with words that no other class uses. `Fault` checks new messages against this table, and `fault_of`
# looks classes up in it. FETCH_FAILED is everything else, including messages that others wrote.
_FIRST_WORDS = {
    MISSING_MEMBER: ("missing member",),
    MISSING_CONTENT: ("missing content",),
    DANGLING_REFERENCE: ("ambiguous", "dangling reference"),
    DECOMPRESSION_BOMB: ("decompression bomb",),
    OVERSIZED_MEMBER: ("oversized member",),
    UNDECODABLE_IMAGE: ("unreadable image", "failed to extract frame"),
    DIGEST_MISMATCH: ("digest mismatch",),
}
ITEM_FAULTS = (*_FIRST_WORDS, FETCH_FAILED)
"""Classes of faults of items; the others are of samples, members or files."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one item: its class, one of `ITEM_FAULTS`, and the message that is written into its row.

    Faults of whole samples are exceptions (`SampleError`), which have a ``kind`` as well.

    Raises:
        ValueError: The message would not be read back as one of this class.
    """

    kind: str
    message: str

    def __post_init__(self) -> None:
        if self.kind != FETCH_FAILED and not self.message.startswith(_FIRST_WORDS.get(self.kind, ())):
            raise ValueError(f"no message of an item's fault {self.kind!r}: {self.message!r}")

    @classmethod
    def read(cls, message: str) -> Fault:
        """Return the fault described by a row's ``materialize_error``."""
        return cls(fault_of(message), message)


def fault_of(message: str) -> str:
    """Return the class of an item's fault, from its message."""
    return next((kind for kind, words in _FIRST_WORDS.items() if message.startswith(words)), FETCH_FAILED)


def missing_member(name: object, alike: str | None = None) -> Fault:
    """Return the fault of an item whose member does not exist, though one that looks ``alike`` may."""
    hint = "" if alike is None else f": the tar has {alike!a}, which looks alike, and not {name!a}"
    return Fault(MISSING_MEMBER, f"missing member {name!r}{hint}")


def oversized_member(name: str, size: int, limit: int) -> Fault:
    """Return the fault of an image of more than ``limit`` bytes, which is not read."""
    return Fault(OVERSIZED_MEMBER, f"oversized member {name!r}: {size} bytes, at most {limit}")


def lost_frame(member: str, frame: int, error: Exception) -> Fault:
    """Return the fault of an item whose TIFF frame is damaged."""
    return Fault(UNDECODABLE_IMAGE, f"failed to extract frame {frame} from {member!r}: {error}")


def surplus_reference(member: str, frame: int, frames: int, references: int) -> Fault:
    """Return the fault of an item whose frame does not exist."""
    return Fault(
        DANGLING_REFERENCE,
        f"dangling reference: frame {frame} of {member!r}: "
        f"it has {frames} frames for {references} references",
    )


def digest_mismatch(name: str, declared: str, found: str) -> Fault:
    """Return the fault of an image whose digest is another than the field ``name`` of its document says."""
    return Fault(DIGEST_MISMATCH, f"digest mismatch: its {name} is {found}, and {declared} is declared")


def unreadable_image(error: Exception) -> Fault:
    """Return the fault of an item whose bytes are no readable image."""
    return Fault(UNDECODABLE_IMAGE, f"unreadable image: {error}")


# Module that cannot be imported -> the feature that needs it, its package, our extra if one brings it.
_EXTRAS = {
    "adlfs": ("Azure Blob Storage", "adlfs", "azure"),
    "apprise": ("Sending alerts", "apprise", "dagster"),
    "c2pa": ("Reading content credentials", "c2pa-python", "c2pa"),
    "cv2": ("A score of pixels", "opencv-python-headless", "scores"),
    "dagster": ("The graph", "dagster", "dagster"),
    "duckdb": ("A condition over scores", "duckdb", "scores"),
    "gcsfs": ("Google Cloud Storage", "gcsfs", "gcs"),
    "huggingface_hub": ("The Hugging Face Hub", "huggingface-hub", "hub"),
    "lance": ("Lance", "pylance", "lance"),
    "pandas": ("to_pandas()", "pandas", ""),
    "pdqhash": ("The perceptual hash", "pdqhash", "scores"),
    "polars": ("to_polars()", "polars", ""),
    "py3langid": ("Language detection", "py3langid", "scores"),
    "pypdfium2": ("PDF", "pypdfium2", "pdf"),
    "ray": ("A run on a Ray cluster", "ray", "ray"),
    "s3fs": ("S3", "s3fs", "s3"),
    "torch": ("CLIP", "torch", "clip"),
    "transformers": ("CLIP", "transformers", "clip"),
    "zxingcpp": ("The area of QR codes", "zxing-cpp", "scores"),
}


class MissingExtra(MmAssetsError, ImportError, ValueError):
    """A required library is not installed; the message says how to install it.

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
            target = f"'mm-assets[{extra}]'" if extra else package
            return MissingExtra(f"{what} needs {package}: pip install {target}", name=found.name)
    return error


def require(*modules: str) -> None:
    """Raise `MissingExtra` for the first of some libraries that is not installed; none is imported."""
    for module in modules:
        if find_spec(module) is None:
            raise explained(ModuleNotFoundError(f"No module named {module!r}", name=module))


class ImageError(MmAssetsError, ValueError):
    """The bytes are no readable image: damaged, cut short, empty or of an unknown format."""


class DecompressionBomb(ImageError):
    """Decoding would be too expensive; it was not tried."""


class LosslessSplitError(ImageError):
    """A frame cannot be taken out of the TIFF without loss; the TIFF itself may be sound."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot split losslessly: {reason}")
