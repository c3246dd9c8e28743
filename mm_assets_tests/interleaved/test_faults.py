"""Faults of items as values, and every way in which an item of a raw tar gets one."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.filters.registry import AspectRatioFilter
from mm_assets.interleaved import InterleavedWebdatasetReader, MaterializeError
from mm_assets.model.errors import (
    DANGLING_REFERENCE,
    FAULTS,
    FETCH_FAILED,
    ITEM_FAULTS,
    MISSING_MEMBER,
    OVERSIZED_MEMBER,
    UNDECODABLE_IMAGE,
    Fault,
    digest_mismatch,
    fault_of,
    lost_frame,
    missing_member,
    oversized_member,
    unreadable_image,
)
from mm_assets.model.losses import apply_policy
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.images.tiff_tools import grey_page, tiff_of, write_tiff
from mm_assets_tests.formats.raw_tars import make_tar

PNG = picture(0)[1]
OWN = {"texts": [], "_row_extra": {}}


def errors_of(shard: Path, **options: Any) -> list[str]:
    (batch,) = InterleavedWebdatasetReader(str(shard), **options)
    return [
        row["materialize_error"] for row in batch.data.to_pylist() if row["materialize_error"] is not None
    ]


def sharing_frames() -> bytes:
    """Frames that all show the same strip: split, they would take many times the file."""
    frames, strip = 60, bytes(200_000)
    at = 8 + len(strip)
    out = b"II*\0" + struct.pack("<I", at) + strip
    for number in range(frames):
        entries = [
            (256, 4, 1, 1000),
            (257, 4, 1, 200),
            (258, 3, 1, 8),
            (262, 3, 1, 1),
            (273, 4, 1, 8),
            (279, 4, 1, 200_000),
        ]
        following = at + (number + 1) * (2 + 12 * len(entries) + 4) if number + 1 < frames else 0
        out += (
            struct.pack("<H", len(entries))
            + b"".join(struct.pack("<HHII", *e) for e in entries)
            + struct.pack("<I", following)
        )
    return out


def lost_strip() -> bytes:
    """Two frames; the strip of the second lies beyond the file."""
    data = write_tiff([grey_page(8, 8, bytes(64)), grey_page(3, 3, b"123456789")])
    return data.replace(
        struct.pack("<HHII", 273, 4, 1, data.index(b"123456789")), struct.pack("<HHII", 273, 4, 1, 10**9)
    )


CASES: dict[str, tuple[list[tuple[str, Any]], str, str]] = {
    "name that is not there": (
        [("a.json", {"images": ["gone.png"]})],
        MISSING_MEMBER,
        "missing member 'gone.png'",
    ),
    "name beside a tiff": (
        [("a.json", {"images": ["gone.png"]}), ("a.tiff", tiff_of(1))],
        *(MISSING_MEMBER, "missing member 'gone.png'"),
    ),
    "key of our layout": (
        [("a.json", {**OWN, "images": ["0.png"]})],
        MISSING_MEMBER,
        "missing member 'a.0.png'",
    ),
    "token without a tiff": (
        [("a.json", {"images": ["page_0"]})],
        *(DANGLING_REFERENCE, "dangling reference 'page_0': no member, and no frame of a TIFF"),
    ),
    "token among names": (
        [("a.json", {"images": ["a.png", "page_0"]}), ("a.png", PNG), ("a.tiff", tiff_of(1))],
        *(DANGLING_REFERENCE, "dangling reference 'page_0': no member, and no frame of a TIFF"),
    ),
    "no string": (
        [("a.json", {"images": [{"k": 1}]})],
        DANGLING_REFERENCE,
        "dangling reference: no member name: {'k': 1}",
    ),
    "empty string": (
        [("a.json", {"images": [""]})],
        DANGLING_REFERENCE,
        "dangling reference: no member name: ''",
    ),
    "no string in our layout": (
        [("a.json", {**OWN, "images": [5]})],
        DANGLING_REFERENCE,
        "dangling reference: no member name: 5",
    ),
    "name that occurs twice": (
        [("a.json", {"images": ["a.png"]}), ("a.png", PNG), ("a.png", b"other")],
        *(DANGLING_REFERENCE, "ambiguous: 2 members are called 'a.png'"),
    ),
    "reference that fits two": (
        [("d/a.json", {"images": ["i.png"]}), ("i.png", PNG), ("d/i.png", b"other")],
        *(DANGLING_REFERENCE, "ambiguous reference 'i.png': members 'i.png', 'd/i.png'"),
    ),
    "two tiffs": (
        [("a.json", {"images": ["p"]}), ("a.tiff", tiff_of(1)), ("a.tif", tiff_of(1))],
        *(DANGLING_REFERENCE, "ambiguous: 'a' has more than one TIFF member"),
    ),
    "surplus reference": (
        [("a.json", {"images": ["p0", "p1", "p2"]}), ("a.tiff", tiff_of(2))],
        *(DANGLING_REFERENCE, "dangling reference: frame 2 of 'a.tiff': it has 2 frames for 3 references"),
    ),
    "no tiff": (
        [("a.json", {"images": ["p0"]}), ("a.tiff", PNG)],
        *(UNDECODABLE_IMAGE, "failed to extract frame 0 from 'a.tiff': not a TIFF: no valid header"),
    ),
    "lost strip": (
        [("a.json", {"images": ["p0", "p1"]}), ("a.tiff", lost_strip())],
        *(UNDECODABLE_IMAGE, "failed to extract frame 1 from 'a.tiff': "),
    ),
    "frames that share data": (
        [("a.json", {"images": ["p0"]}), ("a.tiff", sharing_frames())],
        *(UNDECODABLE_IMAGE, "failed to extract frame 0 from 'a.tiff': its frames share data"),
    ),
    "text of a pair without image": (
        [("a.png", PNG), ("a.txt", b"t"), ("b.txt", b"t")],
        *(MISSING_MEMBER, "missing member: no image of key 'b'"),
    ),
    "two images of a pair": (
        [("a.png", PNG), ("a.jpg", PNG), ("a.txt", b"t")],
        *(DANGLING_REFERENCE, "ambiguous: key 'a' has 2 images: a.png, a.jpg"),
    ),
    "an error that came with the data": (
        [
            (
                "a.json",
                {
                    **OWN,
                    "images": [None],
                    "_row_errors": [{"modality": "image", "position": 0, "materialize_error": "theirs"}],
                },
            )
        ],
        *(FETCH_FAILED, "theirs"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_class_of_each_error(tmp_path: Path, case: str) -> None:
    members, fault, message = CASES[case]
    (error,) = errors_of(make_tar(tmp_path / "x.tar", members))
    assert error.startswith(message)
    assert fault_of(error) == fault


def test_the_named_tiff_is_not_there(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["p0"], "pdf": "scan.tiff"})])
    assert errors_of(shard, image_member_field="pdf") == ["missing member 'scan.tiff'"]
    assert fault_of("missing member 'scan.tiff'") == MISSING_MEMBER


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("a.png", "../../etc/passwd", "outside the tar"),
        ("a.png", "nowhere.png", "no file of this tar"),
        ("a.png", "a.png", "leads back to itself"),
        ("caf\xe9.png", "a.json", "the name is not UTF-8"),
    ],
)
def test_members_that_cannot_be_followed(tmp_path: Path, name: str, target: str, said: str) -> None:
    shard = tmp_path / "x.tar"
    with tarfile.open(shard, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        tar.addfile(link)
        data = json.dumps({"images": [name.replace("\xe9", "\\xe9")]}).encode()
        info = tarfile.TarInfo("a.json")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    (error,) = errors_of(shard)
    assert error.startswith("dangling reference: member ") and said in error
    assert fault_of(error) == DANGLING_REFERENCE


LARGE: list[tuple[str, Any]] = [
    ("a.json", {"images": ["a.png", "small.png", "a.png"]}),
    ("a.png", PNG + bytes(5000)),
    ("small.png", PNG),
    ("pdf.json", {"images": ["p0", "p1"]}),
    ("pdf.tiff", tiff_of(2) + bytes(5000)),
    ("own.json", {**OWN, "images": ["0.png"]}),
    ("own.0.png", PNG + bytes(5000)),
]


@pytest.mark.parametrize("options", [{}, {"quarantine_errors": True}, {"materialize": False}], ids=str)
def test_an_image_beyond_the_limit_is_an_error_row_that_locates_it(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 5000
    members = {name: data for name, data in LARGE if isinstance(data, bytes)}
    shard = make_tar(tmp_path / "x.tar", LARGE)
    monkeypatch.setattr(
        "mm_assets.formats.webdataset.reader.plan_sound_frames", lambda data: pytest.fail("was read")
    )
    (batch,) = InterleavedWebdatasetReader(str(shard), max_member_bytes=limit, **options)
    rows = [row for row in batch.data.to_pylist() if row["modality"] == "image"]
    assert len(rows) == 6
    for row in rows:
        ref = json.loads(row["source_ref"])
        data = members[ref["member"]]
        assert shard.read_bytes()[ref["byte_offset"] : ref["byte_offset"] + ref["byte_size"]] == data
        if ref["member"] == "small.png":
            assert row["materialize_error"] is None
            continue
        assert (
            row["materialize_error"]
            == f"oversized member {ref['member']!r}: {len(data)} bytes, at most {limit}"
        )
        assert fault_of(row["materialize_error"]) == OVERSIZED_MEMBER
        assert row["binary_content"] is None
    assert not [
        row
        for batch in InterleavedWebdatasetReader(str(shard), max_member_bytes=1 << 20, materialize=False)
        for row in batch.data.to_pylist()
        if row["materialize_error"]
    ]


def test_an_image_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["a.png"]}), ("a.png", PNG)])
    assert errors_of(shard, max_member_bytes=len(PNG)) == []
    assert len(errors_of(shard, max_member_bytes=len(PNG) - 1)) == 1


def test_an_unreadable_image(tmp_path: Path) -> None:
    shard = make_tar(
        tmp_path / "x.tar", [("a.json", {"images": ["a.png"]}), ("a.png", b"\x89PNG\r\n\x1a\nnonsense")]
    )
    (batch,) = InterleavedWebdatasetReader(str(shard))
    errors = [
        text for text in AspectRatioFilter(0.5, 2)(batch).batch.data["materialize_error"].to_pylist() if text
    ]
    assert [fault_of(text) for text in errors] == [UNDECODABLE_IMAGE]


def test_classes_are_those_that_are_listed() -> None:
    assert len(set(FAULTS)) == len(FAULTS)
    assert {fault for _, fault, _ in CASES.values()} <= set(FAULTS)
    assert set(ITEM_FAULTS) <= set(FAULTS)


MESSAGES = {
    "missing_member": ["missing member 'a.png'", "missing member: no image of key 'b'"],
    "missing_content": ["missing content: an image of 0 bytes"],
    "dangling_reference": ["ambiguous: 2 members are called 'a'", "dangling reference: no member name: 5"],
    "decompression_bomb": ["decompression bomb: 10 x 10 pixels"],
    "oversized_member": ["oversized member 'a.png': 9 bytes, at most 8"],
    "undecodable_image": ["unreadable image: cut", "failed to extract frame 0 from 'a.tiff': no TIFF"],
    "digest_mismatch": [digest_mismatch("md5", "0a", "0b").message],
    "fetch_failed": ["theirs", "", "a.tar: range 1+2 is outside the file"],
}


def test_the_class_of_every_message_is_read_back() -> None:
    assert set(MESSAGES) == set(ITEM_FAULTS)
    for kind, messages in MESSAGES.items():
        for message in messages:
            assert Fault.read(message) == Fault(kind, message)
            assert fault_of(Fault(kind, message).message) == kind


@pytest.mark.parametrize("kind", [*sorted(set(FAULTS) - {FETCH_FAILED}), "no such class"])
def test_a_fault_whose_class_could_not_be_read_back_is_not_made(kind: str) -> None:
    with pytest.raises(ValueError, match=f"no message of an item's fault '{kind}': 'some words'"):
        Fault(kind, "some words")


def test_faults_that_several_formats_word_alike() -> None:
    assert missing_member("a.png") == Fault(MISSING_MEMBER, "missing member 'a.png'")
    assert oversized_member("a", 9, 8) == Fault(OVERSIZED_MEMBER, "oversized member 'a': 9 bytes, at most 8")
    cause = ValueError("cut")
    assert lost_frame("a", 1, cause) == Fault(UNDECODABLE_IMAGE, "failed to extract frame 1 from 'a': cut")
    assert unreadable_image(cause) == Fault(UNDECODABLE_IMAGE, "unreadable image: cut")


def test_an_error_of_the_policy_carries_the_class() -> None:
    rows = [{"sample_id": "s", "position": 0, "modality": "image", "materialize_error": "ambiguous: two"}]
    with pytest.raises(MaterializeError) as caught:
        apply_policy(pa.Table.from_pylist(rows), "error")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert caught.value.kind == again.kind == DANGLING_REFERENCE
