"""Needles and the search for them, against Python's own search."""

from __future__ import annotations

import base64
import html
import json
import random
from collections.abc import Callable
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.accounting.erasures import SAMPLE_ID, URL
from mm_assets.accounting.needles import IMAGE, MEMBER, TEXT, Needles, NeedleSearch
from mm_assets.formats.names import sample_key

RANDOM = np.random.default_rng(33)
IMAGE_BYTES = RANDOM.bytes(20_000)
ENGLISH = (
    'The "old" harbour & its lighthouse were built of stone in 1874, <b>and</b> both are still in use today.'
)
CHINESE = "这座灯塔建于一八七四年用石头砌成至今仍在使用并且每天晚上都会亮起来照亮海面上的船只和港口"
CZECH = "Žluťoučký kůň úpěl ďábelské ódy, a příliš žluťoučký maják přežil všechny bouře."
LINK = "https://images.example.org/harbour/old%20lighthouse.jpg?size=large&lang=<zh>"
LONG_ID, SHORT_ID = "harbour/00000000000000001874", "1874"

_SPELLINGS: dict[str, Callable[[str], str]] = {
    "UTF-8": lambda text: text,
    "JSON in ASCII": lambda text: json.dumps({"a": text}),
    "JSON": lambda text: json.dumps({"a": text}, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps([text])),
    "JSON in JSON, in UTF-8": lambda text: json.dumps(
        json.dumps([text], ensure_ascii=False), ensure_ascii=False
    ),
    "HTML": lambda text: f"<p>{html.escape(text)}</p>",
    "HTML in JSON": lambda text: json.dumps({"page": f"<p>{html.escape(text)}</p>"}),
}


def _naive(needles: list[bytes], data: bytes) -> list[tuple[int, int]]:
    found = []
    for number, needle in enumerate(needles):
        at = data.find(needle)
        while at >= 0:
            found.append((number, at))
            at = data.find(needle, at + 1)
    return sorted(found)


def _kinds(needles: Needles, data: bytes) -> set[str]:
    return {needles.needles[number].kind for number, _ in needles.search().find(data)}


@given(
    needles=st.lists(st.binary(min_size=8, max_size=40), min_size=1, max_size=6, unique=True),
    between=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=50)), max_size=12),
)
def test_search_finds_what_python_finds(needles: list[bytes], between: list[tuple[int, bytes]]) -> None:
    data = b"".join(filler + needles[number % len(needles)] for number, filler in between)
    assert sorted(NeedleSearch(needles).find(data)) == _naive(needles, data)


@given(
    data=st.binary(min_size=0, max_size=400).map(lambda b: bytes(c % 3 for c in b)), size=st.integers(8, 20)
)
def test_search_in_data_that_repeats_itself(data: bytes, size: int) -> None:
    needles = sorted({data[at : at + size] for at in range(len(data) - size + 1)})[:50] or [bytes(size)]
    assert sorted(NeedleSearch(needles).find(data)) == _naive(needles, data)


def test_search_across_its_blocks() -> None:
    needle = RANDOM.bytes(23)
    data = bytearray(RANDOM.bytes(3 << 20))
    places = [0, (1 << 20) - 31, 1 << 20, (2 << 20) - 7, len(data) - 23]
    for place in places:
        data[place : place + 23] = needle
    assert [at for _, at in NeedleSearch([needle]).find(bytes(data))] == places


def test_search_in_zeros_for_zeros() -> None:
    assert len(list(NeedleSearch([bytes(16)]).find(bytes(1000)))) == 1000 - 15


def test_nothing_is_found_by_chance() -> None:
    contents = [RANDOM.bytes(5_000) for _ in range(300)]
    texts = [" ".join(random.Random(i).choices(ENGLISH.split(), k=60)) + f" {i:08}" for i in range(300)]
    needles = Needles.of_values([*contents, *texts], [f"{i:024x}" for i in range(300)])
    assert len(needles.needles) > 8_000
    for _ in range(8):
        assert not list(needles.search().find(RANDOM.bytes(4 << 20)))
    others = " ".join(
        random.Random(7).choices("north river stone glass paper signal orbit leaf".split(), k=1 << 18)
    )
    assert not list(needles.search().find(others.encode()))


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, CZECH], ids=["English", "Chinese", "Czech"])
@pytest.mark.parametrize("spelling", _SPELLINGS)
def test_text_is_found_in_every_spelling(text: str, spelling: str) -> None:
    assert _kinds(Needles.of_values([text]), _SPELLINGS[spelling](text).encode()) == {TEXT}


def test_end_and_beginning_of_a_text_are_found() -> None:
    """Messages are cut, pages show the first characters, a text may be in two languages."""
    words = " ".join(random.Random(4).choices(ENGLISH.split(), k=300))
    for text in (words, CHINESE + words, f"{CHINESE * 20} {CZECH}"):
        needles = Needles.of_values([text])
        for part in (text[:100], text[-100:], text[len(text) // 3 : -len(text) // 3]):
            assert needles.is_in(part), part


@pytest.mark.parametrize("spelling", _SPELLINGS)
@pytest.mark.parametrize("link", [LINK, LINK + "x" * 300], ids=["short", "long"])
def test_url_is_found_in_every_spelling(link: str, spelling: str) -> None:
    assert _kinds(Needles.of_values([{"links": [link]}]), _SPELLINGS[spelling](link).encode()) == {URL}


@pytest.mark.parametrize("spelling", _SPELLINGS)
@pytest.mark.parametrize("sample_id", [LONG_ID, "Größe/数据/00000000001", 'a "quoted" <id> of 24'])
def test_id_is_found_in_every_spelling(sample_id: str, spelling: str) -> None:
    assert _kinds(Needles.of_values([], [sample_id]), _SPELLINGS[spelling](sample_id).encode()) == {SAMPLE_ID}


def test_id_is_found_in_names_of_files() -> None:
    sample_id = "a.dotted id/of 30 characters.x"
    needles = Needles.of_values([], [sample_id])
    for name in (quote(sample_id, safe=""), f"{sample_key(sample_id)}.0.jpg"):
        assert _kinds(needles, f"webdataset/{name}".encode()) == {SAMPLE_ID}


def test_short_id_is_found_where_it_is_called_an_id() -> None:
    needles = Needles.of_values([], [SHORT_ID])
    assert needles.ids == {SHORT_ID}
    for text in (
        json.dumps({"position": 1, "sample_id": SHORT_ID}),
        json.dumps({"sample_id": SHORT_ID}, separators=(",", ":")),
        json.dumps({"text": json.dumps({"sample_id": SHORT_ID})}),
        f"sample {SHORT_ID!r}, position 3: unreadable image",
        json.dumps({"text": f"sample {SHORT_ID!r}"}),
        html.escape(f"sample {SHORT_ID!r}"),
    ):
        assert needles.is_in(text), text
    for text in ('{"width": 1874, "sample_id": "18740"}', "built in 1874", "sample '11874'"):
        assert not needles.is_in(text), text


def test_short_id_is_found_as_a_whole_text_and_in_names_of_members() -> None:
    needles = Needles.of_values([], ["000000013", "1874", "picture"])
    assert needles.short == {"000000013"}
    assert Needles.of_bytes(needles.to_bytes()) == needles
    assert needles.not_searched_for() == {
        "sample_id, short: within other text": 1,
        "sample_id, short: outside of id fields": 2,
    }
    for text in (
        "000000013",
        json.dumps({"first": ["000000012.1.png", "000000013.7.png"]}),
        json.dumps({"000000013": 1}),
        json.dumps({"__class__": "EventMetadataEntry", "text": json.dumps([["a/000000013.json", 2]])}),
        "a line\na.tar: 000000013.7.png: 3 columns",
        "it's ambiguous: 2 members are called '000000013.0.png'",
        """sample id "000000013" occurs twice""",
        '{"damaged": "000000013.json',
    ):
        assert needles.is_in(text), text
    for text in (
        json.dumps({"first": ["0000000130.1.png", "000000012.000000013.png", "picture", "1874.png"]}),
        json.dumps({"__class__": "AssetMaterialization", "partition": "000000013"}),
        json.dumps({"__class__": "AssetKey", "path": ["000000013"]}),
        json.dumps({"dagster/partition": "000000013", "file": "raw/000000013.tar"}),
        "[" * 100_000 + "000000013",
        "built in 000000013",
    ):
        assert not needles.is_in(text), text
    assert not needles.without([], "", names=["000000013"]).is_in("000000013")
    assert Needles.joined([needles, Needles()]).short == needles.short


def test_key_that_is_a_digest_is_no_trace() -> None:
    sample_id = "x" * 200
    key = sample_key(sample_id)
    assert key.startswith("=")
    assert not Needles.of_values([], [sample_id]).is_in(f"{key}.json")


@pytest.mark.parametrize("before", [0, 1, 2])
def test_image_is_found_in_base64(before: int) -> None:
    encoded = base64.b64encode(b"x" * before + IMAGE_BYTES)
    assert _kinds(Needles.of_values([IMAGE_BYTES]), b'<img src="data:image/jpeg;base64,' + encoded) == {IMAGE}


@pytest.mark.parametrize("page", [512, 4092, 65_532])
@pytest.mark.parametrize("first", [0, 100, 333])
def test_image_is_found_in_pages(page: int, first: int) -> None:
    """A database puts the number of the next page in front of each part of a value."""
    for size in (1_500, 20_000):
        image = IMAGE_BYTES[:size]
        parts = [image[:first], *(image[at : at + page] for at in range(first, size, page))]
        assert _kinds(Needles.of_values([image]), b"\0\0\1\7".join(parts)) == {IMAGE}


def test_part_of_an_image_is_found() -> None:
    needles = Needles.of_values([IMAGE_BYTES])
    for part in (IMAGE_BYTES[:10_000], IMAGE_BYTES[9_000:12_000], IMAGE_BYTES[12_000:]):
        assert _kinds(needles, part) == {IMAGE}


def test_header_that_images_share_is_not_searched_for() -> None:
    header = RANDOM.bytes(1_000)
    one, other = header + RANDOM.bytes(9_000), header + RANDOM.bytes(9_000)
    assert not _kinds(Needles.of_values([one]), other)


def test_what_cannot_be_looked_for_is_counted() -> None:
    needles = Needles.of_values(["en", "short", bytes(5_000), "https://a.b/c", ENGLISH])
    assert needles.counts() == {TEXT: 1}
    assert needles.omitted == {
        "url, too short or plain": 1,
        "image, too short or plain": 1,
        "text, too short or plain": 2,
    }


def test_rows() -> None:
    ref = json.dumps(
        {"path": "web.tar", "member": "a-name-of-its-own.jpg", "byte_offset": 512, "byte_size": 9}
    )
    rows = pa.table(
        {
            "sample_id": [LONG_ID] * 3,
            "position": [-1, 0, 1],
            "modality": ["metadata", "text", "image"],
            "content_type": ["application/json", "text/plain", "image/jpeg"],
            "text_content": [None, ENGLISH, None],
            "binary_content": pa.array([None, None, IMAGE_BYTES], pa.large_binary()),
            "source_ref": [None, None, ref],
            "materialize_error": pa.nulls(3, pa.string()),
            "links": [[LINK], None, None],
            "page": [{"title": CHINESE}, None, None],
        }
    )
    whole = Needles.of(rows, is_whole=True)
    assert whole.counts() == {IMAGE: 1, MEMBER: 1, SAMPLE_ID: 1, TEXT: 2, URL: 1}
    assert Needles.of(rows.slice(2), is_whole=False).counts() == {IMAGE: 1}
    assert Needles.of_bytes(whole.to_bytes()) == whole
    assert Needles.joined([whole, Needles.of(rows.slice(2), is_whole=False)]).counts() == whole.counts()


def test_json_text_is_taken_apart() -> None:
    cell = json.dumps({"links": [LINK], "caption": CHINESE})
    rows = pa.table(
        [pa.array(["a"]), pa.array([cell])],
        schema=pa.schema(
            [
                pa.field("sample_id", pa.string()),
                pa.field("m", pa.string(), metadata={"mm_assets:encoding": "json"}),
            ]
        ),
    )
    assert Needles.of(rows, is_whole=False).counts() == {TEXT: 1, URL: 1}


def test_what_others_have_is_left_out_in_every_spelling() -> None:
    needles = Needles.of_values([ENGLISH, CHINESE, IMAGE_BYTES])
    everything = needles.without(range(len(needles.needles)), "all")
    assert (everything.needles, everything.counts()) == ((), {})
    assert everything.omitted == {"image, all": 1, "text, all": 2}
    others = CHINESE.encode() + IMAGE_BYTES
    some = needles.without({number for number, _ in needles.search().find(others)}, "in what stays, too")
    assert some.omitted == {"image, in what stays, too": 1, "text, in what stays, too": 1}
    for text in (CHINESE, base64.b64encode(IMAGE_BYTES).decode()):
        for spelling in _SPELLINGS.values():
            assert needles.is_in(spelling(text))
            assert not some.is_in(spelling(text))
    assert some.is_in(json.dumps(ENGLISH))


def test_windows_that_others_lack_are_still_looked_for() -> None:
    shared, own = IMAGE_BYTES[:10_000], IMAGE_BYTES[10_000:]
    needles = Needles.of_values([shared + own])
    rest = needles.without({number for number, _ in needles.search().find(shared)}, "in what stays, too")
    assert (rest.counts(), rest.omitted) == ({IMAGE: 1}, {})
    assert _kinds(rest, own) == {IMAGE}
    assert not _kinds(rest, shared)


def test_id_that_is_a_part_of_another_one() -> None:
    sample_id, other = "shard-00000/000000001", "shard-00000/0000000012"
    needles = Needles.of_values([], [sample_id])
    rest = needles.without({number for number, _ in needles.search().find(other.encode())}, "others")
    assert rest.counts() == {SAMPLE_ID: 1}
    assert rest.is_in(json.dumps({"sample_id": sample_id}))
    assert not rest.is_in(json.dumps({"sample_id": other}))


def test_damaged_needles() -> None:
    for data in (b"{}", b"[]", b"no JSON", b'{"needles": [["text", 1, ""]], "ids": [], "omitted": {}}'):
        with pytest.raises(ValueError):
            Needles.of_bytes(data)


_ARRAYS = {
    "text": lambda value: pa.array(["other", value.decode("latin-1"), None]),
    "large bytes": lambda value: pa.array([b"other", None, value], pa.large_binary()),
    "sliced": lambda value: pa.array([b"other", b"x" * 99, value, b"y"]).slice(1, 2),
    "fixed size": lambda value: pa.array([bytes(len(value)), value], pa.binary(len(value))),
    "views": lambda value: pa.array([b"other", value], pa.binary_view()),
    "list": lambda value: pa.array([[b"other"], None, [b"a", value]]),
    "fixed-size list": lambda value: pa.array([[b"a", value]], pa.list_(pa.binary(), 2)),
    "struct": lambda value: pa.array([{"a": {"b": [value]}}]),
    "map": lambda value: pa.array([[("key", value)]], pa.map_(pa.string(), pa.binary())),
    "keys of a map": lambda value: pa.array([[(value, 1)]], pa.map_(pa.binary(), pa.int8())),
    "dictionary": lambda value: pa.array([b"other", value, value]).dictionary_encode(),
    "run ends": lambda value: pa.RunEndEncodedArray.from_arrays([2, 3], [b"other", value]),
}


@pytest.mark.parametrize("name", _ARRAYS)
def test_values_of_any_type(name: str) -> None:
    value = b"a needle of thirty-two characters"
    array = _ARRAYS[name](b"<" + value + b">")
    assert list(NeedleSearch([b"another needle of the same kind", value]).in_values(array)) == [1]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_binary(), pa.binary(24)], ids=str)
def test_no_value_begins_in_another_one(type_: pa.DataType) -> None:
    search = NeedleSearch([b"abcdefghijklmnopqrstuvwx"])
    assert list(search.in_values(pa.array(["abcdefghijklmnopqrstuvwx"], pa.string()).cast(type_)))
    halves = ["x" * 12 + "abcdefghijkl", "mnopqrstuvwx" + "y" * 12]
    assert not list(search.in_values(pa.array(halves, pa.string()).cast(type_)))


def test_arrays_without_values() -> None:
    search = NeedleSearch([b"a needle of thirty-two characters"])
    for array in (pa.array([], pa.string()), pa.nulls(3, pa.large_binary()), pa.nulls(2), pa.array([1, 2])):
        assert not list(search.in_values(array))
    assert not list(NeedleSearch([]).find(b"x" * 100))
