"""Erasures and the deny list: what is kept of a request, and what is taken out of a stream."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.accounting.erasures import (
    DenyList,
    Entry,
    Erasure,
    ErasureStore,
    alias_of,
    text_digest,
)
from mm_assets.filters.measure import ImageContent
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.formats.images import probe
from mm_assets.formats.parquet import UnreadableFile
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import DUPLICATE_ID, ERASED, INCOMPLETE_SAMPLE, UNREFERENCED_MEMBER
from mm_assets.model.json_codec import json_field
from mm_assets.model.losses import Loss
from mm_assets.model.samples import BatchStream, build_source_ref
from mm_assets_tests.filters.test_contamination import jpeg
from mm_assets_tests.formats.datasets import batch_of, item, table_of
from mm_assets_tests.formats.raw_tars import make_tar

URL = "https://example.org/a.jpg?x=1"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def deny(*entries: Entry, partitions: dict[str, int] | None = None) -> DenyList:
    erasure = replace(Erasure.begin(entries), id="e1", partitions=partitions or {})
    return DenyList.of([erasure])


def image(sample_id: str, position: int, data: bytes | None, **values: Any) -> dict[str, Any]:
    return item(sample_id, position, "image", binary_content=data, **values)


@pytest.mark.parametrize(
    ("kind", "given", "radius", "message"),
    [
        ("sha256", "12", 10, "sha256: '12' is not 64 hex digits"),
        ("md5", "g" * 32, 10, f"md5: '{'g' * 32}' is not 32 hex digits"),
        ("pdq", "0" * 64, 32, f"pdq: a radius of 32 for '{'0' * 64}' is not 0 to 31"),
        ("url", "", 10, "url: '' has 0 bytes, not 1 to 65536"),
        ("name", "x", 10, "'name' is none of sample_id, url, sha256, md5, pdq"),
    ],
)
def test_what_is_no_entry_is_named(kind: str, given: str, radius: int, message: str) -> None:
    with pytest.raises(ValueError, match="^") as caught:
        Entry.of(kind, given, radius)
    assert str(caught.value) == message


def test_entries_hold_digests_alone() -> None:
    assert Entry.of("sample_id", "é/1") == Entry("sample_id", sha256("é/1".encode()))
    assert Entry.of("url", URL) == Entry("url", sha256(URL.encode()))
    assert Entry.of("sha256", "AB" * 32) == Entry("sha256", "ab" * 32)
    assert Entry.of("pdq", "AB" * 32) == Entry("pdq", "ab" * 32, 31)
    assert Entry.of("md5", "cd" * 16, 5) == Entry("md5", "cd" * 16)


def test_erasures_are_kept_and_read_again(tmp_path: Path) -> None:
    store = ErasureStore(str(tmp_path))
    assert store.all() == [] and not DenyList.read(str(tmp_path))
    first = Erasure.begin([Entry.of("sample_id", "secret"), Entry.of("sample_id", "secret")])
    assert len(first.entries) == 1
    store.write(first)
    store.write_work(first.id, b"secret")
    assert store.unfinished() == [first] and store.read_work(first.id) == b"secret"
    done = replace(first, partitions={"p/1": 3}, scan={"files": 9}, finished="2026-01-01T00:00:00+00:00")
    store.write(done)
    store.remove_work(first.id)
    store.remove_work(first.id)
    assert store.all() == [done] == [store.read(first.id)] and store.unfinished() == []
    assert store.read_work(first.id) is None
    kept = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file.name for file in kept] == [f"{first.id}.json"]
    assert b"secret" not in kept[0].read_bytes()
    found = DenyList.read(str(tmp_path))
    assert found.erasures_of("p/1") == [first.id] and found.erasures_of("p/2") == []
    assert found.hides_sample("secret") and not found.hides_sample("other")
    assert DenyList.read(str(tmp_path)) is found
    with pytest.raises(ValueError, match="is no id of an erasure"):
        store.read("../x")
    with pytest.raises(ValueError, match="no erasure 'x'"):
        store.read("x")


def test_a_damaged_erasure_lets_nothing_in(tmp_path: Path) -> None:
    store = ErasureStore(str(tmp_path))
    store.write(erasure := Erasure.begin([Entry.of("sample_id", "a")]))
    file = tmp_path / "ledger" / "erasures" / f"{erasure.id}.json"
    file.write_bytes(file.read_bytes().replace(b"sample_id", b"sample_ix"))
    with pytest.raises(
        UnreadableFile, match=rf"{erasure.id}.json: damaged, and nobody can tell what may not"
    ):
        DenyList.read(str(tmp_path))


def test_digest_is_of_what_is_denied() -> None:
    one, other = Entry.of("sample_id", "a"), Entry.of("url", URL)
    assert deny(one, other).digest == DenyList.of([Erasure.begin([other]), Erasure.begin([one])]).digest
    assert deny(one).digest != deny(other).digest
    assert pickle.loads(pickle.dumps(deny(one))) == deny(one)  # noqa: S301


EXTRAS = [
    pa.field("url", pa.string()),
    pa.field("links", pa.list_(pa.struct([pa.field("to", pa.large_string())]))),
    json_field("more"),
]


@pytest.mark.parametrize(
    "values",
    [
        {"url": URL},
        {"links": [{"to": None}, {"to": URL}]},
        {"more": json.dumps({"a": [1, {"b": URL}]})},
        {"source_ref": build_source_ref(URL)},
    ],
    ids=str,
)
def test_a_url_in_any_column_takes_its_row_or_its_sample(values: dict[str, Any]) -> None:
    step = deny(Entry.of("url", URL)).step("drop_row")
    near = {"url": URL + "2", "more": json.dumps(f"see {URL}")}
    of_item = [item("a", **near), item("a", 0, text_content="x", **values), image("a", 1, b"x")]
    of_sample = [item("b", **values), item("b", 0, text_content="y")]
    batch = batch_of([*of_item, *of_sample], EXTRAS)
    result = step(batch)
    assert [(row["sample_id"], row["position"]) for row in result.batch.data.to_pylist()] == [
        ("a", -1),
        ("a", 1),
    ]
    reason = "erased on request e1"
    assert result.losses == (
        Loss.quarantined("a", 0, "text", ERASED, reason),
        Loss.quarantined(alias_of("b"), -1, "metadata", ERASED, reason),
        Loss.quarantined(alias_of("b"), 0, "text", ERASED, reason, is_cause=False),
    )


def test_bytes_and_pictures_take_the_row_or_with_its_policy_the_sample(tmp_path: Path) -> None:
    exact, encoded_anew, other = jpeg(1), jpeg(2, quality=60), jpeg(3)
    original = jpeg(2)
    hash_, quality = ImageContent(memoryview(original), probe(original), MAX_PIXELS).perceptual
    assert quality > 20
    entries = [Entry.of("sha256", sha256(exact)), Entry.of("pdq", hash_, 20)]
    rows = [
        item("a"),
        image("a", 0, exact),
        image("a", 1, other),
        image("b", 0, encoded_anew),
        item("c", 0, text_content="t"),
    ]
    batch = batch_of(rows)
    dropped = deny(*entries).step("drop_row")(batch)
    assert dropped.batch.data.column("position").to_pylist() == [-1, 1, 0]
    assert [(loss.sample_id, loss.position, loss.kind) for loss in dropped.losses] == [
        ("a", 0, ERASED),
        ("b", 0, ERASED),
    ]
    whole = deny(*entries).step("drop_sample")(batch)
    assert whole.batch.data.column("sample_id").to_pylist() == ["c"]
    because = "its sample has an error at position 0: erased on request e1"
    assert whole.losses == (
        Loss.quarantined("a", -1, "metadata", INCOMPLETE_SAMPLE, because, is_cause=False),
        Loss.quarantined("a", 0, "image", ERASED, "erased on request e1"),
        Loss.quarantined("a", 1, "image", INCOMPLETE_SAMPLE, because, is_cause=False),
        Loss.quarantined("b", 0, "image", ERASED, "erased on request e1"),
    )
    strict = deny(Entry.of("pdq", hash_, 0)).step("drop_row")(batch)
    assert strict.losses == ()


def test_a_flat_picture_is_near_to_none() -> None:
    from mm_assets_tests.filters.filter_sets import png

    flat = png(64, 64)
    hash_, quality = ImageContent(memoryview(flat), probe(flat), MAX_PIXELS).perceptual
    assert quality < 20
    assert deny(Entry.of("pdq", hash_)).denials(table_of([image("a", 0, flat)])) == {}


def test_images_that_only_a_locator_names_are_looked_at(tmp_path: Path) -> None:
    make_tar(tmp_path / "x.tar", [("a.jpg", jpeg(1)), ("b.jpg", jpeg(2))])
    refs = [build_source_ref(str(tmp_path / "x.tar"), name) for name in ("a.jpg", "b.jpg")]
    rows = [item("a"), *(image("a", n, None, source_ref=ref) for n, ref in enumerate(refs)), item("b")]
    step = deny(Entry.of("sha256", sha256(jpeg(2)))).step("warn", [str(tmp_path)])
    result = step(batch_of(rows))
    assert result.batch.data.column("position").to_pylist() == [-1, 0, -1]
    assert [loss.position for loss in result.losses] == [1]


def test_the_stream_tells_nothing_of_an_erased_sample() -> None:
    """Losses of the reader, locators and names of members are hidden; digest and number are not."""
    rows = [item("a", source_ref=build_source_ref("x.tar", "a.json", 0, 9)), item("b")]
    batch = batch_of(rows, source_files=["x.tar"])
    source = BatchStream("p", batch.data.schema, lambda: [batch], ("x.tar",), 2)
    ref = build_source_ref("x.tar", "a.json", 512, 9)
    kept = Loss.quarantined("c", -1, "metadata", DUPLICATE_ID, "'c' again", ref)
    source.losses += [Loss.quarantined("a", -1, "metadata", DUPLICATE_ID, "'a' again", ref), kept]
    members = [
        Loss(
            None, None, None, "unreferenced", UNREFERENCED_MEMBER, "why", source_ref=build_source_ref("x", n)
        )
        for n in ("a.0.jpg", "ab.0.jpg")
    ]
    source.notes["x.tar"] = {
        "unreferenced_members": ["dir/a.0.jpg", "ab.0.jpg", f"={text_digest('a')}.1.png"],
        "unreferenced_losses": members,
    }
    stream = source.through([deny(Entry.of("sample_id", "a")).step("error")])
    assert [b.data.column("sample_id").to_pylist() for b in stream] == [["b"]]
    reason = "erased on request e1"
    hidden = Loss.quarantined(alias_of("a"), -1, "metadata", ERASED, reason)
    assert stream.losses == [hidden, kept, hidden]
    assert stream.notes["x.tar"]["unreferenced_members"] == [ERASED, "ab.0.jpg", ERASED]
    assert [(loss.kind, loss.source_ref) for loss in stream.notes["x.tar"]["unreferenced_losses"]] == [
        (ERASED, None),
        (UNREFERENCED_MEMBER, members[1].source_ref),
    ]
    removed = ContentDigest()
    removed.observe(batch.data.slice(0, 1))
    assert stream.removed.hexdigest() == removed.hexdigest()


def test_losses_of_a_sample_that_its_url_hides_are_hidden() -> None:
    batch = batch_of([item("a", url=URL)], EXTRAS)
    source = BatchStream("p", batch.data.schema, lambda: [batch])
    source.losses.append(Loss.quarantined("a", -1, "metadata", DUPLICATE_ID, "'a' is twice in it"))
    stream = source.through([deny(Entry.of("url", URL)).step("drop_row")])
    assert [b.num_rows for b in stream] == [0]
    assert {(loss.sample_id, loss.kind) for loss in stream.losses} == {(alias_of("a"), ERASED)}
    assert not any("'a'" in loss.reason for loss in stream.losses)


def test_names_of_members_with_a_prefix_are_known() -> None:
    found = deny(Entry.of("sample_id", "shard-1/x.y"))
    assert found.hides_member("x.y.json", ["", "shard-1/"])
    assert found.hides_member("x%2Ey.0.png", ["shard-1/"])
    assert not found.hides_member("x.json", ["shard-1/"])


def test_bytes_in_quarantine_are_looked_through() -> None:
    found = deny(Entry.of("sha256", sha256(b"\x89PNG")), Entry.of("url", URL), Entry.of("sample_id", "a"))
    assert found.hides_bytes(memoryview(b"\x89PNG"))
    assert found.hides_bytes(json.dumps({"images": [URL]}).encode())
    assert found.hides_bytes(b' {"id": "a", "x": 1}')
    assert found.hides_bytes(b'\xef\xbb\xbf{"id": "\\u0061", "cut')
    assert not found.hides_bytes(b'{"id": "b"}') and not found.hides_bytes(b"\x89PNG2")


def test_pictures_in_quarantine_are_compared() -> None:
    """Such as one whose declared digest is another's: no score tells of it."""
    hash_, _ = ImageContent(memoryview(jpeg(2)), probe(jpeg(2)), MAX_PIXELS).perceptual
    found = deny(Entry.of("pdq", hash_, 20))
    assert found.hides_bytes(memoryview(jpeg(2, quality=60)))
    assert not found.hides_bytes(jpeg(3)) and not found.hides_bytes(jpeg(2)[:300])
    assert not found.hides_bytes(b"no picture") and not found.hides_bytes(b'{"id": "b"}')
