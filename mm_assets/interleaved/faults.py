"""Fault classes, as in quarantine records, and `Fault`: what is wrong with one item."""

from __future__ import annotations

from dataclasses import dataclass

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
MISSING_MODALITY = "missing_modality"  # of paired shards: a key that one of the tars lacks
# A member with the name of a json that is not a regular file: a pipe, a sparse file.
UNREADABLE_MEMBER = "unreadable_member"
UNREADABLE_PDF = "unreadable_pdf"  # it is encrypted, cut, damaged, beyond the limits, or kills its reader
FETCH_FAILED = "fetch_failed"  # a locator that cannot be followed, or any error that came with the data
# A sound item of a sample with a fault elsewhere, where the policy keeps samples whole.
INCOMPLETE_SAMPLE = "incomplete_sample"
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
    TRUNCATED_TAR,
    DAMAGED_TAR,
    MISSING_MODALITY,
    UNREADABLE_MEMBER,
    UNREADABLE_PDF,
    FETCH_FAILED,
    INCOMPLETE_SAMPLE,
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


def unreadable_image(error: Exception) -> Fault:
    """Return the fault of an item whose bytes are no readable image."""
    return Fault(UNDECODABLE_IMAGE, f"unreadable image: {error}")
