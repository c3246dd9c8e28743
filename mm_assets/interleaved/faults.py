"""The classes of faults in data: what quarantine calls them, and the class of an error message of ours."""

from __future__ import annotations

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

# Errors of items travel as text, in the column materialize_error, through every format. Their first words
# tell the class; whoever words an error keeps to these (mm_assets_tests/interleaved/test_faults.py holds
# every place to it).
_FIRST_WORDS = (
    ("missing member", MISSING_MEMBER),
    ("missing content", MISSING_CONTENT),
    ("ambiguous", DANGLING_REFERENCE),
    ("dangling reference", DANGLING_REFERENCE),
    ("decompression bomb", DECOMPRESSION_BOMB),
    ("oversized member", OVERSIZED_MEMBER),
    ("unreadable image", UNDECODABLE_IMAGE),
    ("failed to extract frame", UNDECODABLE_IMAGE),
)


def fault_of(message: str) -> str:
    """The class of an item's error message."""
    return next((fault for words, fault in _FIRST_WORDS if message.startswith(words)), FETCH_FAILED)
