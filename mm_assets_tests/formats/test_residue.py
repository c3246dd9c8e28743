"""What macOS and tar programs leave in tars: no data and no loss, counted and named once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from mm_assets.accounting.survey import Excerpt, findings, survey_shard
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats import MultiModalWebDataset
from mm_assets.formats.registry import reader_for
from mm_assets.formats.reports import left_out_lines, left_out_of
from mm_assets.formats.webdataset import RawLayout
from mm_assets.storage.listing import expand_paths
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.formats.datasets import raw_streams
from mm_assets_tests.formats.paired.raw.modalities import images_of, texts_of
from mm_assets_tests.formats.parquet_of_others import PICTURES
from mm_assets_tests.formats.pdf.pdf_files import Page, lines, pdf
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = pytest.mark.usefixtures("shared_workers")

APPLE_DOUBLE = b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(140)
FINDER = b"\0\0\0\1Bud1" + bytes(60)
EXTENDED = b"27 mtime=1700000000.123456\n"
Members = list[tuple[str, Any]]


def of_mac(members: Members) -> Members:
    """The members as bsdtar on macOS packs them, and what was unpacked and packed again."""
    packed: Members = [("./._.", APPLE_DOUBLE), ("./.DS_Store", FINDER), ("__MACOSX/._a.json", APPLE_DOUBLE)]
    for name, data in members:
        folder, _, file = f"./{name}".rpartition("/")
        packed += [(f"{folder}/._{file}", APPLE_DOUBLE), (f"{folder}/PaxHeaders.0/{file}", EXTENDED)]
        packed.append((f"./{name}", data))
    return packed


def documents(folder: Path, mac: Callable[[Members], Members], suffix: str = ".tar") -> str:
    members: Members = []
    for number in range(2):
        fields = {"texts": [f"t{number}", None], "images": [None, f"d/{number}.png"]}
        members += [(f"d/{number}.png", PICTURES[number]), (f"d/{number}.json", fields)]
    return str(make_tar(folder / f"s{suffix}", mac(members), "w:gz" if suffix.endswith("gz") else "w"))


def packed_documents(folder: Path, mac: Callable[[Members], Members]) -> str:
    return documents(folder, mac, ".tar.gz")


def remote_documents(folder: Path, mac: Callable[[Members], Members]) -> str:
    url = f"memory://{folder.name}-{mac is of_mac}"
    with fsspec.open(f"{url}/s.tar", "wb") as file:
        file.write(Path(documents(folder, mac)).read_bytes())
    return url


def pairs(folder: Path, mac: Callable[[Members], Members]) -> str:
    members: Members = [("0.jpg", PICTURES[0]), ("0.txt", b"c"), ("1.jpg", PICTURES[1]), ("1.txt", b"d")]
    return str(make_tar(folder / "s.tar", mac(members)))


def paired(folder: Path, mac: Callable[[Members], Members]) -> str:
    for name, members in {"images": images_of(["a", "b"]), "texts": texts_of(["a", "b"])}.items():
        make_tar(folder / name / "s.tar", mac(list(members)))
    return f"images={folder / 'images'} texts={folder / 'texts'}"


def pdfs(folder: Path, mac: Callable[[Members], Members]) -> str:
    members: Members = [(f"{name}.pdf", pdf([Page(lines(["words"], 50, 700))])) for name in "ab"]
    make_tar(folder / "s.tar", mac(members))
    return f"pdf={folder}"


LAYOUTS = {
    "documents": (documents, 4),
    "packed": (packed_documents, 4),
    "remote": (remote_documents, 4),
    "pairs": (pairs, 4),
    "paired": (paired, 8),
    "pdf": (pdfs, 2),
}


def read(locations: str) -> tuple[pa.Table, Any]:
    """The rows of the one shard, but for locators, and its stream."""
    ((_, stream),) = raw_streams(locations)
    rows = pa.concat_tables([pa.table(batch.data) for batch in stream])
    return rows.drop_columns(["source_ref"]), stream


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tar_of_a_mac_has_the_rows_of_the_same_tar_without(tmp_path: Path, layout: str) -> None:
    make, files = LAYOUTS[layout]
    plain, _ = read(make(tmp_path / "plain", list))
    rows, stream = read(make(tmp_path / "mac", of_mac))
    assert rows.equals(plain)
    assert not stream.losses
    ((_, notes),) = stream.notes.items()
    tars = 2 if layout == "paired" else 1
    assert len(notes["left_out_members"]) == 2 * files + 3 * tars
    assert not any(name.startswith("unreferenced") for name in notes)
    prefix = {"paired": "images/s.tar: ", "pdf": "s/s.tar: "}.get(layout, "")
    assert notes["left_out_members"][:3] == [
        f"{prefix}{n}" for n in ("._.", ".DS_Store", "__MACOSX/._a.json")
    ]


def test_images_beside_json_lines(tmp_path: Path) -> None:
    line = {"texts": ["t"], "images": ["a.png"]}
    (tmp_path / "s.jsonl").write_text(json.dumps(line) + "\n")
    make_tar(tmp_path / "s.tar", of_mac([("a.png", PICTURES[0])]))
    reader = reader_for("jsonl", str(tmp_path / "s.jsonl"))
    stream = reader.open(reader.partitions()[0])
    (batch,) = stream
    assert pa.table(batch.data).column("binary_content").to_pylist() == [None, None, PICTURES[0]]
    assert len(left_out_of(stream.notes)) == 5
    assert not stream.losses


def test_modalities_for_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """webdataset would give ``a/._x.json`` the key ``a/``."""
    members: dict[str, Members] = {
        "images": [("d/a.jpg", b"i"), ("d/b.jpg", b"j")],
        "texts": [("d/a.txt", b"t"), ("d/b.txt", b"u")],
    }
    urls = {name: str(make_tar(tmp_path / name / "s.tar", of_mac(found))) for name, found in members.items()}
    dataset = MultiModalWebDataset(urls, missing_key_policy="error", shardshuffle=False)
    with caplog.at_level(logging.WARNING):
        found = [(sample["__key__"], sample["jpg"], sample["txt"]) for sample in dataset]
    assert found == [("d/a", b"i", b"t"), ("d/b", b"j", b"u")]
    (record,) = caplog.records
    assert "added by macOS or tar to images, and left out: 7 ('._.', '.DS_Store', " in record.getMessage()
    assert "files without key" not in record.getMessage()


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("._x.json", {"texts": ["mine"], "images": []}, "sample"),
        ("a/._x.json", {"texts": ["mine"], "images": []}, "sample"),
        ("PaxHeader/x.json", {"texts": ["mine"], "images": []}, "sample"),
        ("__MACOSX/x.json", {"texts": ["mine"], "images": []}, "sample"),
        ("x.json", APPLE_DOUBLE, "quarantined"),
        ("._x.json", b"", "quarantined"),
        ("._x.json", APPLE_DOUBLE[:3], "quarantined"),
        ("._x.jpg", PICTURES[0], "unreferenced"),
        ("x.jpg", APPLE_DOUBLE, "unreferenced"),
        (".DS_Store", b"mine", "unreferenced"),
        ("x.DS_Store", FINDER, "unreferenced"),
        ("PaxHeader/x.txt", b"mine", "unreferenced"),
        ("._x.jpg", APPLE_DOUBLE, "left out"),
        (".AppleDouble/x.json", APPLE_DOUBLE, "left out"),
        ("a/PaxHeader/x.json", EXTENDED, "left out"),
        ("a\n/._x.json", APPLE_DOUBLE, "left out"),
    ],
)  # fmt: skip
def test_name_and_content_decide(tmp_path: Path, name: str, data: Any, kind: str) -> None:
    """A sample, or a file, that is merely called so does not vanish."""
    tar = make_tar(tmp_path / "s.tar", [("a.json", {"texts": ["t"], "images": []}), (name, data)])
    rows, stream = read(str(tar))
    unreferenced = [loss for notes in stream.notes.values() for loss in notes.get("unreferenced_losses", ())]
    found = {
        "sample": len(rows.column("sample_id").unique()) - 1,
        "quarantined": len(stream.losses),
        "unreferenced": len(unreferenced),
        "left out": len(left_out_of(stream.notes)),
    }
    assert found == {**dict.fromkeys(found, 0), kind: 1}


def test_a_survey_counts_it_and_one_by_earlier_code_is_made_again(tmp_path: Path) -> None:
    tar = documents(tmp_path, of_mac)
    survey = survey_shard("s", [tar], "v", RawLayout(), str(tmp_path), max_member_bytes=1 << 20)
    assert survey.is_sound
    assert survey.unreferenced == Excerpt()
    assert survey.left_out is not None
    assert (survey.left_out.count, survey.members) == (11, 15)
    assert findings(survey)["left_out"] == 11
    assert survey.is_of(survey.version, survey.layout)
    store = SurveyStore(str(tmp_path / "ledger"))
    store.write("s", survey)
    assert store.read("s", "v") == survey

    earlier = replace(survey, left_out=None, unreferenced=Excerpt(("a.npy",), 1))
    assert earlier.is_of(survey.version, survey.layout)
    for names in (("a.npy", "._0.png"), ("s.tar: d/._0.png",)):
        assert not replace(earlier, unreferenced=Excerpt(names, 2)).is_of(survey.version, survey.layout)


def test_hidden_files_match_no_remote_pattern(tmp_path: Path) -> None:
    """As in a local folder: a Mac puts ``._s.tar`` beside ``s.tar`` on a foreign disk."""
    url = f"memory:///{tmp_path.name}"
    for name in ("s.tar", "._s.tar"):
        with fsspec.open(f"{url}/{name}", "wb") as file:
            file.write(b"x")
    assert expand_paths(f"{url}/*.tar", (".tar",)) == [f"{url}/s.tar"]
    assert expand_paths(url, (".tar",)) == [f"{url}/s.tar"]
    assert expand_paths(f"{url}/._*.tar", (".tar",)) == [f"{url}/._s.tar"]


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "jsonl"])
def test_commands_say_it_in_one_line(tmp_path: Path, kind: str) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    for shard in "ab":
        members = [("0.png", PICTURES[0]), ("0.json", {"sample_id": shard, "texts": [], "images": ["0.png"]})]
        make_tar(raw / f"{shard}.tar", of_mac(members))
    line = "14 members left out, added by macOS or tar and no data: ._., .DS_Store, __MACOSX/._a.json, …"
    for command in (("inspect", raw), ("convert", raw, out, "--to", kind)):
        told = fine(run(*command)).splitlines()
        assert [words.strip() for words in told if "left out" in words] == [line]
    assert fine(run("verify", raw, out)).splitlines()[-1] == "equal"


def test_a_line_names_a_few_as_they_can_be_read() -> None:
    assert left_out_lines(0, []) == []
    assert left_out_lines(1, ["._\x1b[2J"]) == [
        "1 member left out, added by macOS or tar and no data: ._\\x1b[2J"
    ]
