"""Documents as items and back, without any file: what comes back, and what becomes of items that are gone."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats.document_layouts import LAYOUT, LAYOUTS, Layout, find_layout, fold, layout_of
from mm_assets.formats.unfolding import FoldError, Item, Row, UnfoldError, Unfolding
from mm_assets_tests.formats.conformance.outputs import PNG

CHAT, MMC4, VQA, CAPTIONS = LAYOUTS


def unfold(
    layout: Layout, document: dict[str, Any], own: tuple[str, ...] = ()
) -> tuple[list[Item], dict[str, Any], dict[str, Any]]:
    """The items of a document, its ``_source`` as it is stored, and the fields that are left."""
    before = copy.deepcopy(document)
    fields = dict(document)
    found = Unfolding(fields, "texts", "images", own, 1000)
    found.finish(layout.unfold(found))
    assert document == before, "what was given stays as it is"
    nulls = [name for name, value in fields.items() if value is None]
    source = json.loads(json.dumps({LAYOUT: found.source(layout.name), "nulls": nulls}))
    assert [item.position for item in found.items] == list(range(len(found.items)))
    return found.items, source, fields


def row(item: Item) -> Row:
    name = None if item.image is None else item.image.name
    return Row(item.position, item.text, name, item.columns)


def folded(layout: Layout, source: dict[str, Any], fields: dict[str, Any], items: list[Item]) -> Any:
    stated = {name: value for name, value in fields.items() if value is not None}
    return fold(layout, stated, copy.deepcopy(source), list(map(row, items)))


def shown(items: list[Item]) -> list[str]:
    """Texts, and names of images in brackets; ``[]`` is an image that is not there."""
    return [
        item.text if item.text is not None else f"[{'' if item.image is None else item.image.name}]"
        for item in items
    ]


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"from": "human" if at % 2 == 0 else "gpt", "value": text} for at, text in enumerate(texts)]


CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("chat", {"image": "a", "conversations": turns("<image>\nx?", "y")}, ["[a]", "\nx?", "y"]),
    ("chat", {"image": "a", "conversations": turns("x?", "y")}, ["[a]", "x?", "y"]),
    ("chat", {"images": ["a", "b"], "conversations": turns("x <image>", "y")}, ["[b]", "x ", "[a]", "y"]),
    ("chat", {"image": "a", "conversations": turns("<image><image>")}, ["[a]", "[]"]),
    ("chat", {"conversations": turns("<image>")}, ["[]"]),
    ("chat", {"messages": [{"role": "user", "content": ""}, {"role": "x", "content": None}]}, []),
    ("chat", {"messages": [{"role": "user", "content": "hi", "weight": 1}, 3, None, []]}, ["hi"]),
    (
        "chat",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a <image>"},
                        {"type": "image"},
                        {"type": "image", "image": "c"},
                        {"type": "image_url", "image_url": {"url": "d", "detail": "low"}},
                        {"type": "video", "video": "v"},
                        "plain",
                        7,
                    ],
                }
            ],
            "images": ["p"],
        },
        ["a <image>", "[p]", "[c]", "[d]", "plain"],
    ),
    (
        "chat",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "index": 1, "text": None},
                        {"type": "image", "index": 0},
                        {"type": "image", "index": 5},
                        {"type": "image", "index": 1},
                    ],
                }
            ],
            "images": ["a", "b"],
        },
        ["[b]", "[a]", "[]", "[]"],
    ),
    (
        "chat",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": "a"},
                        {"type": "input_text", "text": "x"},
                        {"type": "image_url", "value": "b"},
                        {"type": "text", "value": "y"},
                    ],
                }
            ]
        },
        ["[a]", "x", "[b]", "y"],
    ),
    (
        "chat",
        {"texts": [{"user": "q", "assistant": "a", "source": "s"}], "images": ["i"]},
        ["[i]", "q", "a"],
    ),
    ("vqa", {"image": "a", "question": "q", "answer": "r", "id": None}, ["[a]", "q", "r"]),
    ("vqa", {"images": ["a"], "query": "q", "label": ["r", "s"]}, ["[a]", "q", "r", "s"]),
    (
        "vqa",
        {"image": "a", "question": "q", "answers": [{"answer": "r", "id": 1}, {"answer": "s"}], "answer": 3},
        ["[a]", "q", "r", "s"],
    ),
    (
        "vqa",
        {"image": "a", "questions": ["p", "q"], "answers": ["r", "s"]},
        ["[a]", "p", "r", "q", "s"],
    ),
    (
        "vqa",
        {"image_1": "a", "image_2": "b", "question": "<image 2>, <image 1> or <image 1>?", "answer": "r"},
        ["[b]", ", ", "[a]", " or <image 1>?", "r"],
    ),
    ("captions", {"image": "a", "captions": ["x", "y"]}, ["[a]", "x", "y"]),
    ("captions", {"image": "a", "text": "x"}, ["x", "[a]"]),
    ("captions", {"image": {"path": "a", "sha": 1}, "caption": ["x"]}, ["[a]", "x"]),
    ("captions", {"image": "a", "n": 1}, ["[a]"]),
    ("captions", {"images": "a"}, ["[a]"]),
    ("captions", {"image_2": "b", "image_10": "c", "image": "a"}, ["[a]", "[b]", "[c]"]),
    (
        "mmc4",
        {
            "text_list": ["x", "y"],
            "image_info": [
                {"image_name": "a", "raw_url": "u", "matched_text_index": 1, "matched_sim": 0.5},
                {"image_name": "b", "matched_text_index": 0},
                {"raw_url": "c", "matched_text_index": 9},
                {"raw_url": None},
            ],
            "similarity_matrix": [[0.1, 0.5]],
        },
        ["[c]", "[b]", "x", "[a]", "y"],
    ),
]


@pytest.mark.parametrize(("name", "document", "items"), CASES)
def test_items_in_reading_order_and_the_document_again(
    name: str, document: dict[str, Any], items: list[str]
) -> None:
    layout = find_layout(document, "texts", "images")
    assert layout is not None and layout.name == name
    found, source, fields = unfold(layout, document)
    assert shown(found) == items
    assert folded(layout, source, fields, found) == document


def test_role_and_turn_are_of_each_item() -> None:
    document = {"image": "a", "conversations": [*turns("<image> x", "y"), {"from": 3, "value": "z"}]}
    found, _, _ = unfold(CHAT, document)
    assert [item.columns for item in found] == [
        {"role": "human", "turn": 0},
        {"role": "human", "turn": 0},
        {"role": "gpt", "turn": 1},
        {"turn": 2},
    ]
    found, _, _ = unfold(VQA, {"image": "a", "question": "q", "answer": "r"})
    assert [item.columns for item in found] == [{}, {"role": "question"}, {"role": "answer"}]


def test_fields_of_image_info_are_of_the_image() -> None:
    info = {"image_name": "a", "raw_url": "u", "matched_text_index": 0, "matched_sim": 0.5}
    found, _, fields = unfold(MMC4, {"text_list": ["x"], "image_info": [info], "similarity_matrix": [[0.5]]})
    assert found[0].columns == {"raw_url": "u", "matched_text_index": 0, "matched_sim": 0.5}
    assert fields == {"similarity_matrix": [[0.5]]}


NOT_FOUND: list[dict[str, Any]] = [
    {},
    {"texts": ["a"], "messages_": turns("x")},
    {"messages": []},
    {"messages": "x"},
    {"messages": [{"role": "user"}]},
    {"text": "a"},
    {"question": "q", "answer": "r"},
    {"image": ""},
    {"image": 3, "caption": "c"},
    {"text_list": ["a"]},
]


@pytest.mark.parametrize("document", NOT_FOUND)
def test_what_is_of_no_layout(document: dict[str, Any]) -> None:
    assert find_layout(document, "texts", "images") is None


def test_one_text_beside_a_list_of_names_is_a_field() -> None:
    """Such documents were read before there were layouts: their images stay where they are."""
    document = {"images": ["a"], "text": "x"}
    assert find_layout(document, "texts", "images", reads_images=True) is None
    assert find_layout({"images": ["a"]}, "texts", "images", reads_images=True) is None
    assert find_layout({"images": ["a"], "captions": ["x"]}, "texts", "images", reads_images=True) is CAPTIONS


def test_images_in_the_document_itself() -> None:
    text = base64.b64encode(PNG).decode()
    for stated in (text, f"data:image/png;base64,{text}", {"bytes": text}, {"bytes": text, "path": "n"}):
        (item,), source, fields = unfold(CAPTIONS, {"image": stated})
        assert item.image is not None and item.image.data == PNG
        document = fold(CAPTIONS, fields, source, [Row(0, None, "0.png", {})])
        assert document == {"image": {"path": "0.png"} if isinstance(stated, dict) else "0.png"}
        assert text not in json.dumps(source), "the bytes are kept once"


@pytest.mark.parametrize("text", ["data:image/png;base64,!", "data:text/plain,x", "iVBORw0KGgo" + "é" * 200])
def test_what_only_looks_like_bytes_is_a_name(text: str) -> None:
    (item,), source, fields = unfold(CAPTIONS, {"image": text})
    assert item.image is not None and (item.image.name, item.image.data) == (text, None)
    assert folded(CAPTIONS, source, fields, [item]) == {"image": text}


def test_bytes_in_any_spelling_of_base64() -> None:
    data = PNG + b"\xfb\xff\xfe" * 40
    urls = base64.urlsafe_b64encode(data).decode()
    assert "-" in urls and "_" in urls
    for text in (base64.encodebytes(data).decode(), urls, base64.b64encode(data).decode() + "\r\n"):
        for stated in (text, {"bytes": text, "path": "a"}):
            (item,), _, _ = unfold(CAPTIONS, {"image": stated})
            assert item.image is not None and item.image.data == data
    (item,), _, _ = unfold(CAPTIONS, {"image": {"bytes": [*data], "path": "a"}})
    assert item.image is not None and item.image.data == data


@pytest.mark.parametrize(
    "stored", ["!!!", "", "iVBOR_w0KG+o=", "iVBORw0", [137, 256], [True], [], {}, 7, False]
)
def test_bytes_that_cannot_be_read_are_a_fault_and_never_the_image_of_the_name(stored: Any) -> None:
    stated = {"bytes": stored, "path": "a.png", "k": 1}
    part = {"type": "image", "image": stated}
    message = {"role": "u", "content": [part, {"type": "image"}]}
    for document in ({"images": [stated], "messages": [message]}, {"messages": [message]}):
        items, source, fields = unfold(CHAT, document)
        assert items[0].fault is not None and items[0].fault.message.startswith(
            "unreadable image: field 'bytes'"
        )
        assert all(item.image is None or item.image.name is None for item in items)
        assert folded(CHAT, source, fields, items) == document
    items, source, fields = unfold(CAPTIONS, {"images": [stated, "b"]})
    assert folded(CAPTIONS, source, fields, items[1:]) == {"images": ["b"]}


def test_null_bytes_stay_beside_the_name() -> None:
    document = {"image": {"bytes": None, "path": "a.png"}, "captions": ["x"]}
    items, source, fields = unfold(CAPTIONS, document)
    assert shown(items) == ["[a.png]", "x"]
    assert folded(CAPTIONS, source, fields, items) == document


def test_own_images_belong_to_a_document_that_names_none() -> None:
    document = {"conversations": turns("<image> x")}
    found, source, fields = unfold(CHAT, document, own=("k.0.jpg", "k.1.jpg"))
    assert shown(found) == ["[k.1.jpg]", "[k.0.jpg]", " x"]
    again = folded(CHAT, source, fields, found)
    assert again == {**document, "images": ["k.1.jpg", "k.0.jpg"]}
    part = {"messages": [{"role": "u", "content": [{"type": "image", "image": "a"}]}]}
    assert shown(unfold(CHAT, part, own=("k.jpg",))[0]) == ["[a]"]
    assert shown(unfold(CAPTIONS, {"image": "a"}, own=("k.jpg",))[0]) == ["[a]"]


def test_too_many_items_are_refused() -> None:
    for document in ({"image": "a", "conversations": turns("<image>" * 1001)}, {"images": ["a"] * 1001}):
        with pytest.raises(UnfoldError, match="more than 1000 texts and images"):
            unfold(CHAT, document)


def test_what_belongs_to_a_dropped_image_is_gone() -> None:
    document = {
        "images": ["a", "b"],
        "messages": [
            {"role": "u", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "x"}]}
        ],
    }
    found, source, fields = unfold(CHAT, document)
    assert folded(CHAT, source, fields, found[1:]) == {
        "images": ["b"],
        "messages": [{"role": "u", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}],
    }
    found, source, fields = unfold(CHAT, {"image": "a", "conversations": turns("<image>\nx", "y")})
    assert folded(CHAT, source, fields, found[1:]) == {"conversations": turns("\nx", "y")}
    found, source, fields = unfold(CAPTIONS, {"image": "a", "captions": ["x", "y"]})
    assert folded(CAPTIONS, source, fields, [found[0], found[2]]) == {"image": "a", "captions": ["y"]}


def test_numbers_of_images_stay_when_one_is_dropped() -> None:
    parts = [{"type": "image", "index": 1}, {"type": "image", "index": 0}]
    document = {"images": ["a", "b"], "messages": [{"role": "u", "content": parts}]}
    found, source, fields = unfold(CHAT, document)
    left = folded(CHAT, source, fields, found[:1])
    assert left == {"images": [None, "b"], "messages": [{"role": "u", "content": parts[:1]}]}
    assert shown(unfold(CHAT, left)[0]) == ["[b]"]


def test_a_text_of_mmc4_that_is_dropped_keeps_its_number() -> None:
    info = {"image_name": "a", "matched_text_index": 1}
    found, source, fields = unfold(MMC4, {"text_list": ["x", "y"], "image_info": [info]})
    assert folded(MMC4, source, fields, found[1:]) == {"text_list": ["", "y"], "image_info": [info]}


PLAIN = [
    ("chat", [Row(0, "x", None, {}), Row(1, None, "a", {})],
     {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"},
                                               {"type": "image", "image": "a"}]}]}),
    ("chat", [Row(0, "x", None, {"role": "u", "turn": 0}), Row(1, "y", None, {"role": "u", "turn": 1})],
     {"messages": [{"role": "u", "content": [{"type": "text", "text": "x"}]},
                   {"role": "u", "content": [{"type": "text", "text": "y"}]}]}),
    ("mmc4", [Row(0, None, "a", {"sim": 1}), Row(1, "x", None, {})],
     {"text_list": ["x"], "image_info": [{"sim": 1, "image_name": "a", "matched_text_index": 0}]}),
    ("captions", [Row(0, "x", None, {}), Row(1, None, "a", {})], {"image": "a", "text": "x"}),
    ("captions", [Row(0, None, "a", {}), Row(1, "x", None, {}), Row(2, "y", None, {})],
     {"images": ["a"], "captions": ["x", "y"]}),
    ("vqa", [Row(0, None, "a", {}), Row(1, "q", None, {"role": "question"}),
             Row(2, "r", None, {"role": "answer"})],
     {"images": ["a"], "question": "q", "answers": ["r"]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "document"), PLAIN)
def test_rows_of_no_layout_as_documents(name: str, rows: list[Row], document: dict[str, Any]) -> None:
    layout = layout_of(name)
    assert layout is not None and fold(layout, {"n": 1}, {}, rows) == {**document, "n": 1}
    found = find_layout(document, "texts", "images")
    assert found is layout
    assert [(r.text, r.image) for r in map(row, unfold(layout, document)[0])] == [
        (r.text, r.image) for r in rows
    ]


REFUSED = [
    ("captions", [Row(0, "x", None, {}), Row(1, None, "a", {}), Row(2, "y", None, {})],
     "image at position 1 is behind"),
    ("captions", [Row(0, "x", None, {"alt": 1})], "column 'alt' of the item at position 0"),
    ("chat", [Row(0, None, None, {})], "image at position 0, which has no bytes and no name"),
    ("mmc4", [Row(0, "x", None, {}), Row(1, None, "a", {})], "image at position 1 has no text behind it"),
    ("mmc4", [Row(0, "x", None, {"role": "u"})], "column 'role' of the item at position 0"),
    ("vqa", [Row(0, "x", None, {})], "column 'role' is not one question"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "words"), REFUSED)
def test_what_a_layout_cannot_hold(name: str, rows: list[Row], words: str) -> None:
    layout = layout_of(name)
    assert layout is not None
    with pytest.raises(FoldError, match=words):
        fold(layout, {}, {}, rows)


def test_a_field_of_the_name_of_another_is_refused() -> None:
    with pytest.raises(FoldError, match="field 'messages' would be there twice"):
        fold(CHAT, {"messages": "x"}, {}, [Row(0, "x", None, {})])


@pytest.mark.parametrize(
    "source",
    [
        {"name": "chat"},
        {"name": "chat", "fields": 3, "holes": []},
        {"name": "chat", "fields": {}, "holes": [["messages", 0, "text", [0]]]},
        {"name": "chat", "fields": {}, "holes": [[]]},
        {"name": "chat", "fields": {"a": "x"}, "holes": [["a", "b", "name", 0]]},
        {"name": "chat", "fields": {}, "holes": [["a", "text", 5]]},
        {"name": "chat", "fields": {}, "holes": [["a", "part", {}]]},
    ],
)
def test_a_source_that_does_not_fit_is_one_error(source: dict[str, Any]) -> None:
    with pytest.raises(FoldError, match="does not fit the sample"):
        fold(CHAT, {}, {LAYOUT: source}, [Row(0, "x", None, {})])


def test_rows_that_the_document_had_not_are_refused() -> None:
    found, source, fields = unfold(CHAT, {"image": "a", "conversations": turns("<image> x")})
    for added in (Row(9, "z", None, {}), Row(9, None, "z", {})):
        with pytest.raises(FoldError, match="at a position where the document had none"):
            fold(CHAT, fields, source, [*map(row, found), added])


TEXTS = ["", "x", "a.jpg", "<image> y", "<image 1>z<image>"]
NAMES = (
    "role content from value type text image image_url url user assistant answer index path bytes image_name "
    "matched_text_index"
).split()
FIELDS = (
    "messages conversations texts images image image_1 image_2 question questions query answer answers "
    "captions text caption text_list image_info other"
).split()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "image_url", "video"])},
    optional={"text": st.sampled_from(["x", ""]), "image": VALUES, "index": st.integers(-1, 2)},
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system"]) | VALUES, "content": st.lists(PART, max_size=4) | VALUES}
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(FIELDS),
    VALUES | st.lists(VALUES, max_size=4) | st.lists(MESSAGE, max_size=4),
    max_size=6,
)


def _without_bytes(value: Any) -> Any:
    """Bytes in a document are read, and have no place in it again; what cannot be read has."""
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name != "bytes" or not isinstance(each, list)}
        return {name: _without_bytes(each) for name, each in kept.items()}
    return [_without_bytes(each) for each in value] if isinstance(value, list) else value


@given(DOCUMENTS, st.sampled_from(LAYOUTS))
def test_any_document_comes_back(document: dict[str, Any], layout: Layout) -> None:
    document = _without_bytes(document)
    items, source, fields = unfold(layout, document)
    assert folded(layout, source, fields, items) == document


@given(DOCUMENTS, st.sampled_from(LAYOUTS), st.data())
def test_a_dropped_image_leaves_the_others_where_they_were(
    document: dict[str, Any], layout: Layout, data: st.DataObject
) -> None:
    """The document of what is left has the same texts and images but one: none takes the place of another."""
    items, source, fields = unfold(layout, _without_bytes(document))
    images = [item for item in items if item.image is not None]
    if not images:
        return
    gone = data.draw(st.sampled_from(images))
    left = [item for item in items if item is not gone]
    again, _, _ = unfold(layout, folded(layout, source, fields, left))
    names = [item.image.name for item in left if item.image is not None]
    assert [item.image.name for item in again if item.image is not None] == names
    assert "".join(item.text or "" for item in again) == "".join(item.text or "" for item in left)
