"""Raw shards of every shape of docs/raw_shards.md, each the whole way: inspect, run, show, verify.

What is published is what the raw shards say, and names no folder of this machine.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.formats.parquet_of_others import (
    IMAGE,
    PICTURES,
    curator,
    curator_rows,
    documents,
    image,
    interleaved,
)
from mm_assets_tests.formats.pdf.pdf_files import Page, pdf
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.headless.conftest import Project

Files = dict[str, Any]
Settings = dict[str, str]
P0, P1, P2 = PICTURES[:3]
LINES = [
    {"id": n, "question": f"q {n}?", "answer": f"a {n}", "image": f"{n}.png", "stars": n} for n in range(3)
]
VQAV2 = {"question": "how many?", "multiple_choice_answer": "2", "answer_type": "number"}


def write(folder: Path, files: Files) -> None:
    """Write files: lists are lines of JSON; what is no bytes is JSON, too."""
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(as_bytes(value))


def as_bytes(value: Any) -> bytes:
    if isinstance(value, list):
        return "".join(json.dumps(line) + "\n" for line in value).encode()
    return (
        value
        if isinstance(value, bytes)
        else (value if isinstance(value, str) else json.dumps(value)).encode()
    )


def zipped(path: Path, files: Files) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, value in files.items():
            packed.writestr(name, as_bytes(value))


def members(raw: Path) -> Settings:
    document = {"texts": ["t", None, "u"], "images": [None, "k.1.png", None], "lang": "en"}
    make_tar(raw / "a.tar", [("k.json", document), ("k.1.png", P0)])
    return {}


def pairs(raw: Path) -> Settings:
    fields = {"caption": "c", "width": 3, "url": "u"}
    make_tar(
        raw / "a.tar", [("0.png", P0), ("0.txt", b"c"), ("0.json", fields), ("1.png", P1), ("1.txt", b"d")]
    )
    return {"MM_SAMPLE_ID_PREFIX": "shard"}


def chats(raw: Path) -> Settings:
    chat = [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "this"}]
    make_tar(raw / "a.images.tar", [("i/0.png", P0), ("i/1.png", P1)])
    write(raw, {"a.jsonl": [{"id": str(n), "image": f"i/{n}.png", "conversations": chat} for n in range(2)]})
    return {}


def mmc4(raw: Path) -> Settings:
    info = {"image_name": "x.png", "matched_text_index": 1, "matched_sim": 0.5}
    make_tar(raw / "a.tar", [("d.json", {"text_list": ["s", "t"], "image_info": [info]}), ("x.png", P0)])
    return {}


def vqa_lines(raw: Path) -> Settings:
    """Beside a tar of their images, of the same name: it is no raw shard."""
    make_tar(raw / "a.tar", [("0.png", P0), ("1.png", P1), ("2.png", P2)])
    write(raw, {"a.jsonl": LINES})
    return {}


def vqav2_lines(raw: Path) -> Settings:
    """Answers of ten people, in objects."""
    answers = [{"answer": "2", "answer_confidence": "yes", "answer_id": n} for n in range(1, 11)]
    document = {**VQAV2, "image_id": 5, "question_id": 5000, "image": "COCO_5.png", "answers": answers}
    make_tar(raw / "a.images.tar", [("COCO_5.png", P0)])
    write(raw, {"a.jsonl": [document, {**document, "question_id": 5001}]})
    return {}


def vqa_parquet(raw: Path) -> Settings:
    columns = {
        "image": (IMAGE, [image(0, "0.png"), image(1, None)]),
        "question": (pa.string(), ["q?", "r?"]),
        "answers": (pa.list_(pa.string()), [["a", "b"], ["c"]]),
        "question_id": (pa.int64(), [1, 2]),
    }
    documents(raw / "a.parquet", columns)
    return {}


def captions_parquet(raw: Path) -> Settings:
    captions = (pa.list_(pa.string()), [["a", "b"], ["c"]])
    documents(raw / "a.parquet", {"image": (IMAGE, [image(0), image(1)]), "captions": captions})
    return {}


def interleaved_parquet(raw: Path) -> Settings:
    more = {"n": (pa.int16(), [1, None])}
    lists = interleaved([["x", None], ["y", "z"]], [[None, image(0, "0.png")], [image(1), None]], **more)
    documents(raw / "sub" / "a.parquet", lists)
    return {}


def items_parquet(raw: Path) -> Settings:
    rows = [*curator_rows("0", "x", P0, url="u"), *curator_rows("1", None, "y", P1)]
    curator(raw / "a.parquet", rows, [pa.field("url", pa.large_string())])
    return {}


def imagefolder_lines(raw: Path) -> Settings:
    rows = [
        {"file_name": "c/0.png", "text": "zero", "label": 3},
        {"file_name": "1.png", "text": "one", "label": 4},
    ]
    write(raw, {"train/metadata.jsonl": rows, "train/c/0.png": P0, "train/1.png": P1})
    return {}


def imagefolder_rows(raw: Path) -> Settings:
    table = "file_name,text,label\n0.png,zero,3\n1.png,one,4\n"
    write(raw, {"train/metadata.csv": table, "train/0.png": P0, "train/1.png": P1})
    return {}


def loose_folder(raw: Path) -> Settings:
    write(
        raw, {"0.png": P0, "0.txt": "zero", "more/1.png": P1, "more/1.json": {"caption": "one"}, "2.png": P2}
    )
    return {}


def zipped_folder(raw: Path) -> Settings:
    table = "file_name,text\n0.png,zero\n1.png,one\n"
    zipped(raw / "z.zip", {"d/metadata.csv": table, "d/0.png": P0, "d/1.png": P1})
    return {}


def zipped_lines(raw: Path) -> Settings:
    files = {"x.jsonl": LINES, "0.png": P0, "1.png": P1, "2.png": P2}
    zipped(raw / "z.zip", files)
    return {}


def zipped_documents(raw: Path) -> Settings:
    zipped(raw / "z.zip", {"a.json": {"texts": ["t", None], "images": [None, "a.png"]}, "a.png": P0})
    return {}


def paired(raw: Path) -> Settings:
    array = io.BytesIO()
    np.save(array, np.arange(3, dtype=np.float32))
    make_tar(raw / "images" / "0.tar", [("k.png", P0)])
    make_tar(raw / "texts" / "0.tar", [("k.txt", b"t"), ("k.json", {"lang": "en"})])
    make_tar(raw / "emb" / "0.tar", [("k.npy", array.getvalue())])
    return {"MM_RAW_SHARDS": " ".join(f"{name}={raw / name}" for name in ("images", "texts", "emb"))}


def pdfs(raw: Path) -> Settings:
    text = b"BT /F1 12 Tf 72 700 Td (Some words) Tj ET\n"
    write(raw, {"a.pdf": pdf([Page(text)]), "x/b.pdf": pdf([Page(text), Page(text)])})
    return {"MM_RAW_SHARDS": f"pdf={raw}"}


def array_of_documents(raw: Path) -> Settings:
    data = "data:image/png;base64," + base64.b64encode(P0).decode()
    messages = [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "t"}],
        }
    ]
    write(raw, {"a.json": json.dumps([{"messages": messages}, {"messages": messages}])})
    return {"MM_RAW_SHARDS": str(raw / "a.json")}


def images_elsewhere(raw: Path) -> Settings:
    write(raw.parent, {"photos/0.png": P0})
    make_tar(raw.parent / "tars" / "t.tar", [("1.png", P1)])
    write(raw, {"a.jsonl": [{"texts": ["t"], "images": [None, "0.png", "1.png"]}]})
    return {"MM_IMAGES_FROM": f"{raw.parent}/photos {raw.parent}/tars/*.tar"}


def urls_elsewhere(raw: Path) -> Settings:
    note = {"key": "0", "url": "https://x/0", "status": "success"}
    make_tar(raw.parent / "tars" / "t.tar", [("0.png", P0), ("0.json", note)])
    urls, texts = (pa.list_(pa.string()), [["https://x/0", None]]), (pa.list_(pa.string()), [[None, "t"]])
    documents(raw / "a.parquet", {"images": urls, "texts": texts})
    return {"MM_IMAGES_FROM": f"{raw.parent}/tars"}


SHAPES = (
    *(
        members,
        pairs,
        chats,
        mmc4,
        vqa_lines,
        vqav2_lines,
        vqa_parquet,
        captions_parquet,
        interleaved_parquet,
    ),
    *(items_parquet, imagefolder_lines, imagefolder_rows, loose_folder, zipped_folder, zipped_lines),
    *(zipped_documents, paired, pdfs, array_of_documents, images_elsewhere, urls_elsewhere),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_shape_the_whole_way(project: Project, shape: Callable[[Path], Settings]) -> None:
    project.raw.mkdir()
    given = {**project.settings, **shape(project.raw)}
    done = run("run", "--assets", "curated_parquet,quarantine", **given)
    assert done.returncode == 0, done.stderr
    paths = sorted(project.storage.glob("curated/*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert {"text", "image"} - {row["modality"] for row in rows} == ({"image"} if shape is pdfs else set())
    assert {row["materialize_error"] for row in rows} == {None}
    assert leaks(project.folder, project.storage) == []
    if shape is paired:  # is no single location, which the commands take
        return
    raw = given["MM_RAW_SHARDS"]
    assert "0 with an error" in fine(run("inspect", raw, **given))
    assert rows[0]["sample_id"] in fine(run("show", rows[0]["sample_id"], raw, **given))
    fine(run("verify", raw, project.storage / "curated", **given))
    out = project.folder / "out"
    fine(run("convert", raw, out, "--to", "parquet", **given))
    fine(run("verify", out, project.storage / "curated", **given))
    assert leaks(project.folder, out) == []


def test_bad_images_elsewhere_name_no_folder(project: Project) -> None:
    """Errors name places as locators do."""
    project.raw.mkdir()
    write(
        project.folder, {"photos/cut.png": P2[:-40], "photos/twice.png": P0, "photos/large.png": bytes(9999)}
    )
    make_tar(project.folder / "t.tar", [("photos/twice.png", P1)])
    names = ["cut.png", "gone.png", "photos/twice.png", "large.png"]
    write(project.raw, {"a.jsonl": [{"texts": [], "images": [name]} for name in names]})
    places = f"{project.folder}/photos {project.folder} {project.folder}/t.tar"
    others = {"MM_DECODE_FRACTION": "1", "MM_MAX_LOSS": "1", "MM_MAX_MEMBER_BYTES": "5000"}
    project.run("--assets", "curated_parquet,quarantine", MM_IMAGES_FROM=places, **others)
    records = pq.read_table(project.storage / "quarantine" / "a.parquet").to_pylist()
    assert sorted(record["message"] for record in records) == [
        "ambiguous reference 'photos/twice.png': 2 images in 2 files of MM_IMAGES_FROM: "
        "images-from://0/twice.png, photos/twice.png",
        "dangling reference 'gone.png': no such image in MM_IMAGES_FROM",
        "oversized member 'images-from://0/large.png': 9999 bytes, at most 5000",
        "unreadable image: cut or damaged: could not create decoder object",
    ]
    assert leaks(project.folder, project.storage) == []


def leaks(folder: Path, outputs: Path) -> list[str]:
    """Files, and tables in them, that name this folder."""
    found = []
    for path in outputs.rglob("*"):
        text = ""
        if path.is_file() and path.suffix == ".parquet":
            table = pq.read_table(path)
            text = f"{table.to_pylist()} {table.schema.metadata}"
        if path.is_file() and (str(folder) in text or str(folder).encode() in path.read_bytes()):
            found.append(str(path))
    return found
