"""The same documents as tar json, JSON lines and Parquet: the same rows; and lines written from them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.accounting.survey import survey_shard
from mm_assets.formats import webdataset
from mm_assets.formats.document_layouts import LAYOUTS
from mm_assets.formats.parquet import document_layout
from mm_assets.formats.raw_shards import RawReader
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.formats.webdataset import MAX_MEMBER_BYTES, RawLayout
from mm_assets.formats.webdataset import documents as webdataset_documents
from mm_assets.model.errors import ShardError
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.raw_tars import make_tar, tar_members


def _png(width: int) -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, 3)).save(out, format="PNG")
    return out.getvalue()


PICTURES = {f"{name}.png": _png(at + 2) for at, name in enumerate("abc")}


@dataclass(frozen=True)
class Picture:
    """An image of a document: its name in JSON, bytes and name in Parquet."""

    name: str


A, B, C = (Picture(name) for name in PICTURES)


def with_images(value: Any, stand_in: Callable[[str], Any]) -> Any:
    if isinstance(value, Picture):
        return stand_in(value.name)
    if isinstance(value, dict):
        return {name: with_images(each, stand_in) for name, each in value.items()}
    return [with_images(each, stand_in) for each in value] if isinstance(value, list) else value


def as_json(document: dict[str, Any]) -> dict[str, Any]:
    return with_images(document, lambda name: name)


def write(folder: Path, kind: str, documents: list[dict[str, Any]]) -> str:
    """Write documents; those of JSON have their images in the tar, or one beside the lines."""
    folder.mkdir(exist_ok=True)
    named = [{"sample_id": f"d{at}", **document} for at, document in enumerate(documents)]
    pictures = list(PICTURES.items())
    if kind == "parquet":
        stored = [
            with_images(document, lambda name: {"bytes": PICTURES[name], "path": name}) for document in named
        ]
        pq.write_table(pa.Table.from_pylist(stored), folder / "s.parquet")
        return str(folder / "s.parquet")
    if kind == "webdataset":
        jsons = [(f"k{at}.json", as_json(document)) for at, document in enumerate(named)]
        return str(make_tar(folder / "s.tar", [*pictures, *jsons]))
    make_tar(folder / "s.tar", pictures)
    lines = folder / "s.jsonl"
    lines.write_text("".join(json.dumps(as_json(document)) + "\n" for document in named))
    return str(lines)


KINDS = ("webdataset", "jsonl", "parquet")
_PLACES = ("source_ref", "_source", "content_type")


def table_of(kind: str, uri: str, **options: Any) -> pa.Table:
    batches = [batch.data for batch in reader_for(kind, uri, **options)]
    return pa.concat_tables(batches)


def items(table: pa.Table) -> list[dict[str, Any]]:
    """The rows without locators, and without what their place in the document was."""
    rows = table.drop_columns([name for name in _PLACES if name in table.column_names]).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def turn(who: str, text: str | None) -> dict[str, Any]:
    return {"from": who, "value": text}


def said(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


SHAPES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "conversations": (
        "chat",
        [
            {"n": 1, "image": A, "conversations": [turn("human", "<image>\nwhat?"), turn("gpt", "a cat")]},
            {"n": 2, "image": B, "conversations": [turn("human", "no token"), turn("gpt", "x")]},
            {"n": 3, "image": C, "conversations": [turn("human", "x <image>\n y"), turn("gpt", "x")]},
        ],
    ),
    "messages and images": (
        "chat",
        [
            {
                "images": [A, B],
                "messages": [
                    {"role": "user", "content": "<image>1<image>2"},
                    {"role": "assistant", "content": "x"},
                ],
            },
            {"images": [], "messages": [{"role": "user", "content": "words"}]},
        ],
    ),
    "messages of parts": (
        "chat",
        [
            {
                "images": [A, B],
                "messages": [
                    said("user", {"type": "image"}, {"type": "text", "text": "x"}, {"type": "image"}),
                    said("assistant", {"type": "text", "text": "y"}, {"type": "video"}),
                ],
            }
        ],
    ),
    "parts with their images": (
        "chat",
        [{"messages": [said("user", {"type": "image", "image": A}, {"type": "text", "text": "x"})]}],
    ),
    "exchanges": ("chat", [{"images": [A], "texts": [{"user": "q", "assistant": "a", "source": "s"}]}]),
    "questions": (
        "vqa",
        [
            {"image": A, "question": "q", "answers": ["r", "s"], "level": 3},
            {"image": B, "question": "what <image> is", "answers": [], "level": 4},
        ],
    ),
    "annotated answers": (
        "vqa",
        [{"images": [A], "query": "q", "answers": [{"answer": "r", "id": 1}, {"answer": "s", "id": 2}]}],
    ),
    "numbered images": (
        "vqa",
        [{"image_1": A, "image_2": B, "question": "<image 2>, <image 1>?", "answer": "r"}],
    ),
    "captions": ("captions", [{"image": A, "caption": ["x", "y"]}, {"image": B, "caption": ["z"]}]),
    "captions of lists": ("captions", [{"images": [A, B], "captions": ["x", "y"]}]),
    "mmc4": (
        "mmc4",
        [
            {
                "text_list": ["x", "y"],
                "image_info": [
                    {"image_name": A, "matched_text_index": 1, "matched_sim": 0.5},
                    {"image_name": B, "matched_text_index": 0, "matched_sim": 0.25},
                ],
                "similarity_matrix": [[0.25, 0.5], [0.25, 0.0]],
            }
        ],
    ),
}
SHAPE_CASES = pytest.mark.parametrize("shape", SHAPES)


@SHAPE_CASES
def test_the_same_rows_from_every_format(tmp_path: Path, shape: str) -> None:
    _, documents = SHAPES[shape]
    found = {kind: items(table_of(kind, write(tmp_path / kind, kind, documents))) for kind in KINDS}
    for rows in found.values():
        for row in rows:
            row.pop("similarity_matrix", None)  # lists are JSON text but in Parquet
    images = [row.get("binary_content") for row in found["webdataset"] if row["modality"] == "image"]
    assert None not in images and set(images) <= set(PICTURES.values())
    assert found["webdataset"] == found["jsonl"] == found["parquet"]


@SHAPE_CASES
@pytest.mark.parametrize("kind", KINDS)
def test_inspect_names_the_layout(tmp_path: Path, shape: str, kind: str) -> None:
    layout, documents = SHAPES[shape]
    done = run("inspect", write(tmp_path / "in", kind, documents))
    assert done.returncode == 0 and f"  documents: {layout}" in done.stdout, done
    assert ("parts of type 'video'" in done.stdout) == (shape == "messages of parts")


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """The documents of lines, with the names that their images had first."""
    first = {data: name for name, data in PICTURES.items()}
    (lines,) = folder.glob("*.jsonl.gz")
    tars = list(folder.glob("*.images.tar"))
    renamed = {name: first[data] for tar in tars for name, data in tar_members(tar).items()}

    def back(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: back(each) for name, each in value.items()}
        if isinstance(value, list):
            return [back(each) for each in value]
        return renamed.get(value, value) if isinstance(value, str) else value

    return [back(json.loads(line)) for line in gzip.decompress(lines.read_bytes()).splitlines()]


@SHAPE_CASES
@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_the_layout_have_the_documents_again(tmp_path: Path, shape: str, kind: str) -> None:
    """Equal but for the names of images, which are those in the tar beside the lines."""
    layout, documents = SHAPES[shape]
    uri = write(tmp_path / "in", kind, documents)
    writer_for("jsonl", str(tmp_path / "out"), layout=layout).write(reader_for(kind, uri))
    stands_in = (lambda name: {"path": name}) if kind == "parquet" else (lambda name: name)
    assert lines_in(tmp_path / "out") == [
        {"sample_id": f"d{at}", **with_images(document, stands_in)} for at, document in enumerate(documents)
    ]
    again = items(table_of("jsonl", str(tmp_path / "out")))
    before = items(table_of(kind, uri))
    for row in (*again, *before):
        row.pop("similarity_matrix", None)
    assert again == before


@pytest.mark.parametrize("target", ["parquet", "webdataset", "lance", "arrow_cache"])
def test_the_document_comes_back_through_any_format(tmp_path: Path, target: str) -> None:
    layout, documents = SHAPES["messages of parts"]
    uri = write(tmp_path / "in", "jsonl", documents)
    middle = str(tmp_path / "middle.lance") if target == "lance" else str(tmp_path / "middle")
    writer_for(target, middle).write(reader_for("jsonl", uri))
    writer_for("jsonl", str(tmp_path / "out"), layout=layout).write(reader_for(target, middle))
    assert lines_in(tmp_path / "out") == [{"sample_id": "d0", **as_json(documents[0])}]


@SHAPE_CASES
@pytest.mark.parametrize("kind", ["webdataset", "parquet"])
def test_the_survey_finds_what_the_reader_reads(tmp_path: Path, shape: str, kind: str) -> None:
    layout, documents = SHAPES[shape]
    uri = write(tmp_path / "in", kind, documents)
    survey = survey_shard("s", [uri], "v", RawLayout(), None, max_member_bytes=MAX_MEMBER_BYTES)
    table = pa.concat_tables([batch.data for batch in RawReader(uri)])
    modalities = table.column("modality").to_pylist()
    assert sum(survey.samples.column("items").to_pylist()) == table.num_rows
    assert sum(survey.samples.column("images").to_pylist()) == modalities.count("image")
    assert (survey.documents, survey.is_sound) == (layout, True)
    assert survey.columns.required_types().keys() == {
        name for name in table.column_names if name not in INTERLEAVED_SCHEMA.names
    }


def test_pairs_and_lists_are_read_as_ever(tmp_path: Path) -> None:
    """Documents with a list of texts, whatever else they have, and pairs of a text and an image."""
    chat = {"messages": [{"role": "user", "content": "x"}]}
    both = {"texts": [None, "t"], "images": [A, None], **chat}
    for kind in KINDS:
        rows = items(table_of(kind, write(tmp_path / kind, kind, [both])))
        assert [(row["position"], row.get("text_content")) for row in rows[1:]] == [(0, None), (1, "t")]
        forced = items(table_of(kind, write(tmp_path / kind, kind, [both]), document_layout="chat"))
        assert [row.get("text_content") for row in forced[1:]] == [None, "x"]
    uri = write(tmp_path / "pair", "parquet", [{"image": A, "caption": "c", "question": "q", "answer": "r"}])
    assert [row.get("text_content") for row in items(table_of("parquet", uri))[1:]] == ["c", None]
    assert "documents: interleaved" in run("inspect", uri).stdout


def test_the_layout_may_be_forced(tmp_path: Path) -> None:
    _, documents = SHAPES["conversations"]
    uri = write(tmp_path / "in", "jsonl", documents)
    assert {row["modality"] for row in items(table_of("jsonl", uri, document_layout="interleaved"))} == {
        "metadata"
    }
    done = run("inspect", uri, "--document-layout", "captions")
    assert "documents: captions" in done.stdout and "3 metadata, 0 text, 3 image rows" in done.stdout
    assert "documents: captions" in run("inspect", uri, MM_DOCUMENT_LAYOUT="captions").stdout
    with pytest.raises(ValueError, match="document_layout must be one of interleaved, chat, mmc4"):
        reader_for("jsonl", uri, document_layout="chats")


def test_a_document_of_lists_among_chats_is_read_as_such(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for kind in ("webdataset", "jsonl"):
        rows = items(table_of(kind, write(tmp_path / kind, kind, [chat, {"texts": ["t"], "images": [A]}])))
        found = [(row["sample_id"], row["modality"], row.get("turn")) for row in rows if row["position"] >= 0]
        assert found == [("d0", "text", 0), ("d1", "text", None), ("d1", "image", None)]


KEYS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "one image": ({"conversations": [turn("human", "<image>x")]}, ["k.png"], ["k.png", "x"]),
    "numbered": (
        {"question": "q", "answer": "r"},
        ["k.10.png", "k.9.png"],
        ["k.9.png", "k.10.png", "q", "r"],
    ),
    "captions": ({"captions": ["x"]}, ["k.png"], ["k.png", "x"]),
    "a text": ({"text": "x"}, ["k.png"], ["x", "k.png"]),
}


@pytest.mark.parametrize("case", KEYS)
def test_images_of_the_key_belong_to_a_json_that_names_none(tmp_path: Path, case: str) -> None:
    """As in LLaVA's tars, and those of Energon."""
    document, names, expected = KEYS[case]
    members = [("k.json", document), *((name, PICTURES["a.png"]) for name in names), ("other.png", b"x")]
    uri = str(make_tar(tmp_path / "s.tar", members))
    table = table_of("webdataset", uri)
    found = [
        row["text_content"] or json.loads(row["source_ref"])["member"]
        for row in table.to_pylist()
        if row["position"] >= 0
    ]
    assert found == expected
    survey = survey_shard("s", [uri], "v", RawLayout(), None, max_member_bytes=MAX_MEMBER_BYTES)
    assert survey.unreferenced.first == ("other.png",)


def test_images_in_the_json_itself(tmp_path: Path) -> None:
    data = PICTURES["a.png"]
    text = base64.b64encode(data).decode()
    url = f"data:image/png;base64,{text}"
    documents: list[dict[str, Any]] = [
        {"image": text, "captions": ["x"]},
        {"image": {"bytes": text, "path": None}, "captions": ["x"]},
        {"image": url, "captions": ["x"]},
    ]
    for kind in ("webdataset", "jsonl"):
        uri = write(tmp_path / kind, kind, documents)
        table = table_of(kind, uri)
        images = [row for row in table.to_pylist() if row["modality"] == "image"]
        assert [(row["binary_content"], row["content_type"]) for row in images] == [(data, "image/png")] * 3
        assert text not in "".join(filter(None, table.column("_source").to_pylist()))
        small = table_of(kind, uri, max_member_bytes=len(data) - 1).to_pylist()
        errors = {row["materialize_error"] for row in small if row["modality"] == "image"}
        assert len(errors) == 3 and all(error.startswith("oversized member") for error in errors)


def test_base64_in_columns_of_parquet(tmp_path: Path) -> None:
    """It is read like that in JSON, and what cannot be read comes back; no image is found by its name."""
    data = PICTURES["a.png"]
    text = base64.b64encode(data).decode()
    for at, stated in enumerate((text, {"bytes": text, "path": "b"}, {"bytes": [*data], "path": "b"})):
        documents = [{"image": stated, "captions": ["x"]}, {"image": stated, "captions": ["y"]}]
        uri = write(tmp_path / str(at), "parquet", documents)
        images = [row for row in table_of("parquet", uri).to_pylist() if row["modality"] == "image"]
        assert [(row["binary_content"], row["materialize_error"]) for row in images] == [(data, None)] * 2
        survey = survey_shard("s", [uri], "v", RawLayout(), None, max_member_bytes=MAX_MEMBER_BYTES)
        assert survey.unresolved.count == 0
    documents = [{"image": {"bytes": "!!!", "path": "a.png"}, "captions": ["x"]}]
    uri = write(tmp_path / "bad", "parquet", documents)
    writer = writer_for("jsonl", str(tmp_path / "out"), layout="captions", on_materialize_error="warn")
    with pytest.warns(UserWarning, match="unreadable image: field 'bytes'"):
        writer.write(reader_for("parquet", uri))
    assert lines_in(tmp_path / "out") == [{"sample_id": "d0", **documents[0]}]


HOSTILE: dict[str, Any] = {
    "a token without an image": {"conversations": [turn("human", "<image>")]},
    "more tokens than images": {"image": A, "conversations": [turn("human", "<image><image><image>")]},
    "a name of no member": {"image": "gone.png", "conversations": [turn("human", "<image>")]},
    "a name out of the tar": {"image": "../../a.png", "conversations": [turn("human", "<image>")]},
    "a URL": {"image": "https://example.com/a.png", "conversations": [turn("human", "<image>")]},
    "an index beyond": {"images": [A], "messages": [said("u", {"type": "image", "index": 7})]},
    "an index twice": {"images": [A], "messages": [said("u", *[{"type": "image", "index": 0}] * 2)]},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_image_that_is_not_there_is_an_error_row(tmp_path: Path, case: str) -> None:
    for kind in ("webdataset", "jsonl"):
        uri = write(
            tmp_path / kind, kind, [HOSTILE[case], {"image": B, "conversations": [turn("human", "x")]}]
        )
        rows = [row for row in items(table_of(kind, uri)) if row["modality"] == "image"]
        own = [row for row in rows if row["sample_id"] == "d0"]
        assert own and all(row.get("binary_content") in (None, PICTURES["a.png"]) for row in own)
        assert all(("binary_content" in row) != ("materialize_error" in row) for row in rows)
        assert own[-1]["materialize_error"].startswith(("dangling reference", "missing member"))
        assert sum("binary_content" in row for row in own) == (A in _values(HOSTILE[case]))
        if kind == "webdataset":
            survey = survey_shard("s", [uri], "v", RawLayout(), None, max_member_bytes=MAX_MEMBER_BYTES)
            assert survey.unresolved.count == sum("materialize_error" in row for row in rows)


UNNAMED: dict[str, Any] = {
    "no field": {"messages": [said("u", {"type": "image"})]},
    "a number": {"images": 7, "messages": [{"role": "user", "content": "what is <image>?"}]},
    "an empty list": {"images": [], "messages": [{"role": "user", "content": "what is <image>?"}]},
    "an object": {"image": {"k": 1}, "messages": [{"role": "user", "content": "<image>"}]},
    "unreadable bytes": {
        "image": {"bytes": "!", "path": "a.png"},
        "messages": [said("u", {"type": "image"})],
    },
    "a name like a row": {"image": "row 3, x.png", "messages": [{"role": "user", "content": "<image>"}]},
    "a name like a locator": {"image": "x: item 0", "messages": [{"role": "user", "content": "<image>"}]},
}


@pytest.mark.parametrize("case", [*HOSTILE, *UNNAMED])
def test_a_document_with_absent_images_comes_back(tmp_path: Path, case: str) -> None:
    document = {**HOSTILE, **UNNAMED}[case]
    for kind in ("webdataset", "jsonl"):
        uri = write(tmp_path / kind, kind, [document])
        out = tmp_path / f"{kind} out"
        writer = writer_for("jsonl", str(out), layout="chat", on_materialize_error="warn")
        with pytest.warns(UserWarning, match="sample 'd0', position"):
            writer.write(reader_for(kind, uri))
        assert lines_in(out) == [{"sample_id": "d0", **as_json(document)}]


TAKEN: dict[str, list[dict[str, Any]]] = {
    "of the document itself": [{"images": ["d0.1.png", A], "captions": ["x"]}],
    "of a document behind it": [
        {"images": ["./d1.0.png"], "captions": ["x"]},
        {"images": [A], "captions": ["x"]},
    ],
    "of a document before it": [
        {"images": [A], "captions": ["x"]},
        {"images": ["d0.0.png"], "captions": ["x"]},
    ],
    "of the number of the line": [
        {"sample_id": "2", "images": [A], "captions": ["x"]},
        {"images": ["0.png"], "captions": ["x"]},
    ],
}


@pytest.mark.parametrize("case", TAKEN)
def test_an_absent_image_never_has_the_name_of_a_written_one(tmp_path: Path, case: str) -> None:
    uri = write(tmp_path / "in", "jsonl", TAKEN[case])
    writer = writer_for("jsonl", str(tmp_path / "out"), layout="captions", on_materialize_error="warn")
    words = r"sample 'd\d': .* the name of an image that is not there: '.*\.png'"
    with pytest.warns(UserWarning, match="missing member"), pytest.raises(ValueError, match=words):
        writer.write(reader_for("jsonl", uri))
    assert not list((tmp_path / "out").glob("*.jsonl.gz"))


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [inner for each in value.values() for inner in _values(each)]
    return [inner for each in value for inner in _values(each)] if isinstance(value, list) else [value]


ODD: dict[str, Any] = {
    "no turns": {"conversations": []},
    "turns of no kind": {"conversations": [None, 3, "x", [], {}]},
    "a role that is no string": {"conversations": [turn("human", "x"), {"from": 3, "value": "y"}]},
    "no content": {"messages": [{"role": "user", "content": None}, {"role": "user", "content": "x"}]},
    "content of numbers": {"messages": [{"role": "user", "content": [1, None, True, 2.5]}]},
    "parts of no kind": {
        "messages": [{"role": "user", "content": [{}, {"type": None}, {"type": ["image"]}]}]
    },
    "an image that is a number": {"image": 3, "messages": [{"role": "user", "content": "x"}]},
    "deep": {"messages": [{"role": "user", "content": "x", "deep": json.loads("[" * 200 + "]" * 200)}]},
    "a column of ours": {"messages": [{"role": "user", "content": "x"}], "position": 3, "_source": {"a": 1}},
    "role and turn of the document": {"messages": [{"role": "user", "content": "x"}], "role": 1, "turn": "z"},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_documents_come_back(tmp_path: Path, case: str) -> None:
    first = {"messages": [{"role": "user", "content": "first"}]}
    for kind in ("webdataset", "jsonl"):
        uri = write(tmp_path / kind, kind, [first, ODD[case]])
        out = tmp_path / f"{kind} out"
        writer_for("jsonl", str(out), layout="chat").write(reader_for(kind, uri))
        assert lines_in(out)[1] == {"sample_id": "d1", **ODD[case]}


def test_a_million_tokens_are_one_refused_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a thousand: to write and read a million takes half a minute."""
    assert webdataset.MAX_POSITION == 1_000_000
    for module in (webdataset_documents, document_layout):
        assert module.MAX_POSITION == webdataset.MAX_POSITION
        monkeypatch.setattr(module, "MAX_POSITION", 1000)
    chats = [
        {"conversations": [turn("human", "<image>" * 1001)]},
        {"conversations": [turn("human", "x")]},
    ]
    for kind in KINDS:
        uri = write(tmp_path / kind, kind, chats)
        with pytest.raises(ShardError, match="more than 1000 texts and images"):
            table_of(kind, uri)
        assert {row["sample_id"] for row in items(table_of(kind, uri, quarantine_errors=True))} == {"d1"}


def test_text_that_is_not_utf8_in_a_chat_is_one_refused_document(tmp_path: Path) -> None:
    good = pa.table({"messages": pa.array([[{"role": "u", "content": "x"}]] * 3)})
    struct = good.column(0).chunk(0).values
    broken = pa.array([b"x", b"\xff", b"z"]).view(pa.string())
    texts = pa.StructArray.from_arrays([struct.field(0), broken], names=["role", "content"])
    messages = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), texts)
    pq.write_table(pa.table({"messages": messages}), tmp_path / "s.parquet")
    uri = str(tmp_path / "s.parquet")
    rows = items(table_of("parquet", uri, quarantine_errors=True))
    assert [row["text_content"] for row in rows if row["modality"] == "text"] == ["x", "z"]
    with pytest.raises(ShardError, match="column 'messages': not UTF-8"):
        table_of("parquet", uri)


def test_bytes_of_a_column_stay_with_their_image(tmp_path: Path) -> None:
    """Whatever the order of tokens, nulls, and the batches: each image has its own bytes."""
    pictures = [_png(at + 1) for at in range(60)]
    rows = []
    for at in range(20):
        own = pictures[3 * at : 3 * at + 3]
        order = [[0, 1, 2], [2, 0, 1], [1, 2, 0]][at % 3]
        parts = [{"type": "image", "index": number} for number in order]
        stored = [
            None if at % 7 == 3 and n == 1 else {"bytes": data, "path": None} for n, data in enumerate(own)
        ]
        rows.append({"images": stored, "messages": [{"role": "u", "content": parts}]})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "s.parquet", row_group_size=7)
    for limit in (None, 1, 2000):
        found = items(table_of("parquet", str(tmp_path / "s.parquet"), max_batch_bytes=limit))
        images = [row.get("binary_content") for row in found if row["modality"] == "image"]
        expected = []
        for at in range(20):
            for number in [[0, 1, 2], [2, 0, 1], [1, 2, 0]][at % 3]:
                expected.append(None if at % 7 == 3 and number == 1 else pictures[3 * at + number])
        assert images == expected


def test_what_a_layout_cannot_hold_names_sample_and_field(tmp_path: Path) -> None:
    uri = write(tmp_path / "in", "jsonl", SHAPES["conversations"][1])
    done = run("convert", uri, tmp_path / "out", "--to", "jsonl", "--layout", "captions")
    assert done.returncode == 1 and not list((tmp_path / "out").glob("*.jsonl.gz"))
    assert "s.jsonl: sample 'd0': a document of layout captions cannot hold column 'role'" in done.stderr
    done = run("convert", uri, tmp_path / "out", "--to", "parquet", "--layout", "chat")
    assert done.returncode == 1 and "--layout is for --to jsonl, not for parquet" in done.stderr


def test_interleaved_documents_as_lines_of_a_chat(tmp_path: Path) -> None:
    document = {"texts": ["x", None, "y"], "images": [None, A, None], "url": "u"}
    uri = write(tmp_path / "in", "webdataset", [document])
    done = run("convert", uri, tmp_path / "out", "--to", "jsonl", "--layout", "chat")
    assert done.returncode == 0, done
    parts = [
        {"type": "text", "text": "x"},
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "y"},
    ]
    assert lines_in(tmp_path / "out") == [
        {"sample_id": "d0", "messages": [{"role": "user", "content": parts}], "url": "u"}
    ]


def test_a_dropped_image_takes_its_token_along(tmp_path: Path) -> None:
    """From chats through a filter to chats."""
    chats = [
        {"images": [A, B], "messages": [{"role": "user", "content": "<image>one<image>two"}]},
        {"image": C, "conversations": [turn("human", "<image>\nx")]},
    ]
    uri = write(tmp_path / "in", "webdataset", chats)
    done = run("convert", uri, tmp_path / "out", "--to", "jsonl", "--layout", "chat", "--min-image-side", "3")
    assert done.returncode == 0, done
    assert lines_in(tmp_path / "out") == [
        {"sample_id": "d0", "images": ["b.png"], "messages": [{"role": "user", "content": "one<image>two"}]},
        {"sample_id": "d1", **as_json(chats[1])},
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_is_proven_against_its_source(tmp_path: Path, kind: str) -> None:
    uri = write(tmp_path / "in", kind, SHAPES["conversations"][1][:2])
    assert run("convert", uri, tmp_path / "out", "--to", "webdataset").returncode == 0
    done = run("verify", uri, tmp_path / "out")
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), done


def test_every_layout_has_a_shape_here() -> None:
    assert {layout.name for layout in LAYOUTS} == {name for name, _ in SHAPES.values()}
