"""The classes of faults in data, as quarantine calls them, and the fault of one item as a value."""

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
MISSING_CONTENT = (
    "missing_content"  # an item of which there is nothing: no text, no bytes, no locator to get them by
)
DANGLING_REFERENCE = (
    "dangling_reference"  # leads to no one image: ambiguous, a broken link, a frame that is not there
)
UNDECODABLE_IMAGE = "undecodable_image"
DECOMPRESSION_BOMB = "decompression_bomb"
OVERSIZED_MEMBER = "oversized_member"
TRUNCATED_TAR = "truncated_tar"
DAMAGED_TAR = "damaged_tar"
MISSING_MODALITY = "missing_modality"  # of paired shards: a key that one of the tars lacks
UNREADABLE_MEMBER = (
    "unreadable_member"  # a json's name on what is no file, such as a pipe, or on a sparse file
)
FETCH_FAILED = "fetch_failed"  # a locator that cannot be followed, or any error that came with the data
INCOMPLETE_SAMPLE = (
    "incomplete_sample"  # sound, but another item of its sample is not, and the policy keeps samples whole
)
UNREFERENCED_MEMBER = (
    "unreferenced_member"  # no fault of an item: a member that is no sample and no image of one
)
UNREFERENCED_FRAME = "unreferenced_frame"  # likewise: a frame of a TIFF behind those that references lead to

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
    FETCH_FAILED,
    INCOMPLETE_SAMPLE,
)

# In data, an item's fault is its message alone: the column materialize_error, in all formats. So the messages
# of a class begin with words that no other class has. `Fault` holds the code to this table when it makes a
# message, and `fault_of` reads by it. FETCH_FAILED is all else, errors worded by others among it.
_FIRST_WORDS = {
    MISSING_MEMBER: ("missing member",),
    MISSING_CONTENT: ("missing content",),
    DANGLING_REFERENCE: ("ambiguous", "dangling reference"),
    DECOMPRESSION_BOMB: ("decompression bomb",),
    OVERSIZED_MEMBER: ("oversized member",),
    UNDECODABLE_IMAGE: ("unreadable image", "failed to extract frame"),
}
ITEM_FAULTS = (*_FIRST_WORDS, FETCH_FAILED)
"""The classes that an item's fault can have; the others are of samples, members or files."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one item: its class, one of `ITEM_FAULTS`, and the message that is written into its
    row.

    Faults of whole samples are exceptions (`SampleError`), which carry their ``kind`` likewise.

    Raises:
        ValueError: the message would not be read back as one of this class.
    """

    kind: str
    message: str

    def __post_init__(self) -> None:
        if self.kind != FETCH_FAILED and not self.message.startswith(_FIRST_WORDS.get(self.kind, ())):
            raise ValueError(f"no message of an item's fault {self.kind!r}: {self.message!r}")

    @classmethod
    def read(cls, message: str) -> Fault:
        """The fault that a row's ``materialize_error`` tells of."""
        return cls(fault_of(message), message)


def fault_of(message: str) -> str:
    """The class of an item's fault of which data hold nothing but the message."""
    return next((kind for kind, words in _FIRST_WORDS.items() if message.startswith(words)), FETCH_FAILED)


def missing_member(name: object) -> Fault:
    """The fault of an item whose member is not there."""
    return Fault(MISSING_MEMBER, f"missing member {name!r}")


def oversized_member(name: str, size: int, limit: int) -> Fault:
    """The fault of an image of more than ``limit`` bytes, which is not read."""
    return Fault(OVERSIZED_MEMBER, f"oversized member {name!r}: {size} bytes, at most {limit}")


def lost_frame(member: str, frame: int, error: Exception) -> Fault:
    """The fault of an item whose TIFF frame is damaged."""
    return Fault(UNDECODABLE_IMAGE, f"failed to extract frame {frame} from {member!r}: {error}")


def unreadable_image(error: Exception) -> Fault:
    """The fault of an item whose bytes are no image that we can read."""
    return Fault(UNDECODABLE_IMAGE, f"unreadable image: {error}")
