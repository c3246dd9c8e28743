"""The bytes of some samples of a tar: all of theirs, and nothing that another sample has."""

from __future__ import annotations

import io
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.tar import copy_without
from mm_assets.formats.webdataset import RawLayout
from mm_assets.formats.webdataset.samples import TarSamples
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar, tar_members

LONG = "folder/" + "n" * 200  # a name that needs an extended header
MEMBERS: list[tuple[str, Any]] = [
    ("a.json", {"texts": ["t", None], "images": [None, "a.png"]}),
    ("a.png", picture(0)[1]),
    ("b.json", {"sample_id": "named", "images": ["b.0.png", "shared.png"]}),
    ("b.0.png", picture(1)[1]),
    ("b.txt", b"of no reference"),
    ("shared.png", picture(2)[1]),
    ("b.c.json", {"images": ["shared.png", "alone.png"]}),
    ("b.c.txt", b"of another sample"),
    ("alone.png", picture(3)[1]),
    (f"{LONG}.json", {"texts": ["long"]}),
    ("bad.json", b"{no json"),
    ("bad.png", b"of what cannot be read"),
]


def _without(path: Path, *ids: str, layout: RawLayout | None = None) -> dict[str, bytes]:
    """What is left of a tar, as Python reads it."""
    samples = TarSamples(str(path), path.name, layout or RawLayout(), 1 << 30, SampleIds(), None)
    with closing(samples):
        left = io.BytesIO()
        copy_without(samples.descriptor, samples.ranges_of(lambda sample_id: sample_id in ids), left)
    (path.parent / "left.tar").write_bytes(left.getvalue())
    return tar_members(path.parent / "left.tar")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize(
    ("ids", "gone"),
    [
        (["a"], ["a.json", "a.png"]),
        (["named"], ["b.json", "b.0.png", "b.txt"]),
        (["b.c"], ["b.c.json", "b.c.txt", "alone.png"]),
        (["named", "b.c"], ["b.json", "b.0.png", "b.txt", "shared.png", "b.c.json", "b.c.txt", "alone.png"]),
        ([LONG], [f"{LONG}.json"]),
        (["bad"], ["bad.json", "bad.png"]),
        ([], []),
        (["b"], []),  # its id is another
    ],
)
def test_the_sample_goes_and_all_else_stays(
    tmp_path: Path, ids: list[str], gone: list[str], kind: int
) -> None:
    path = make_tar(tmp_path / "x.tar", MEMBERS, kind=kind)
    before = tar_members(path)
    assert _without(path, *ids) == {name: data for name, data in before.items() if name not in gone}


def test_pairs_without_json(tmp_path: Path) -> None:
    files = {"png": picture(0)[1], "txt": b"text"}
    members = [(f"{key}.{end}", data) for key in "ab" for end, data in files.items()]
    path = make_tar(tmp_path / "x.tar", members)
    assert _without(path, "a").keys() == {"b.png", "b.txt"}


def test_links_lose_their_headers_and_what_they_lead_to_stays_if_another_has_it(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (
            ("a.json", b'{"images": ["a.png", "a.2.png"]}'),
            ("b.png", picture(0)[1]),
            ("b.json", b'{"images": ["b.png"]}'),
            ("target.png", picture(1)[1]),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (("a.png", "b.png"), ("a.2.png", "target.png")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.LNKTYPE, target
            tar.addfile(info)
    assert _without(path, "a").keys() == {"b.png", "b.json"}


def test_damage_stays_as_it_is(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", MEMBERS)
    data = path.read_bytes()
    cut = data[: data.index(b"alone.png\0") + 700]
    path.write_bytes(cut)
    samples = TarSamples(str(path), path.name, RawLayout(), 1 << 30, SampleIds(), None)
    with closing(samples):
        left = io.BytesIO()
        copy_without(samples.descriptor, samples.ranges_of(lambda sample_id: sample_id == "a"), left)
    assert left.getvalue() == cut[cut.index(b"b.json\0") :]
