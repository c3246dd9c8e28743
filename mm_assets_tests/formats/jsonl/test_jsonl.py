"""What is particular to JSON lines: two files that are one output, lines of others, and lines that lie."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.formats import jsonl
from mm_assets.formats.jsonl import InterleavedJsonlReader
from mm_assets.formats.registry import detect_format
from mm_assets.interleaved import materialize
from mm_assets.model.errors import ShardError
from mm_assets.storage.files import StagedFile
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.conformance.outputs import PNG, N, rows
from mm_assets_tests.formats.datasets import FORMATS, as_table, batch_of, item, read, write
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.shelf import ShelfFileSystem


def documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def rewrite(path: Path, payloads: list[Any]) -> None:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in payloads]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def tars(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.images.tar"))


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    batch = batch_of([*rows("a", n=1), *rows("b.c", n=2)], [N], partition="x.y")
    write("jsonl", tmp_path / "out", batch)
    return tmp_path / "out" / "x%2Ey.jsonl.gz"


def test_what_lies_there(ours: Path) -> None:
    """Tools of others read it: gzip, a JSON document a line, a tar of the images that the lines name."""
    first, second = documents(ours)
    (name,) = tars(ours.parent)
    assert name.startswith("x%2Ey.") and first["images_tar"] == second["images_tar"] == name
    assert (second["sample_id"], second["texts"]) == ("b.c", ["text of b.c", None, None])
    assert second["images"] == [None, None, "2.png"]
    with tarfile.open(ours.parent / name) as tar:
        assert tar.getnames() == ["a.2.png", second["image_members"][2]]
        content = tar.extractfile("a.2.png")
        assert content is not None and content.read() == PNG


def test_lines_without_images_have_no_tar(tmp_path: Path) -> None:
    batch = batch_of([item("a", 0, text_content="t")], partition="p")
    report = write("jsonl", tmp_path, batch)
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl.gz"]
    assert report.nbytes == (tmp_path / "p.jsonl.gz").stat().st_size
    assert "images_tar" not in documents(tmp_path / "p.jsonl.gz")[0]
    same(read("jsonl", tmp_path), batch.data)


def test_one_file(tmp_path: Path) -> None:
    batch = batch_of(rows("a"))
    write("jsonl", tmp_path / "one.jsonl.gz", batch)
    assert len(list(tmp_path.iterdir())) == 2
    same(read("jsonl", tmp_path / "one.jsonl.gz"), batch.data)
    write("jsonl", tmp_path / "one.jsonl.gz", batch_of([]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["publish images", "pack", "publish lines"])
def test_whoever_dies_while_publishing_leaves_the_version_before(
    ours: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had been killed: nothing is cleaned up."""
    before = read("jsonl", ours.parent)
    published: list[str] = []
    plain = StagedFile.publish

    class Killed(BaseException):
        pass

    def publish(self: StagedFile) -> int:
        if step == ("publish lines" if self.uri.endswith(".jsonl.gz") else "publish images"):
            raise Killed
        published.append(os.path.basename(self.uri))
        return plain(self)

    def pack(*_: Any) -> int:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StagedFile, "publish", publish)
        patched.setattr(StagedFile, "discard", lambda _: None)
        if step == "pack":
            patched.setattr(jsonl.JsonlSink, "_pack", pack)
        with pytest.raises(Killed):
            write("jsonl", ours.parent, batch_of(rows("new", n=9), [N], partition="x.y"))
    assert len(published) == (step != "publish images")
    same(read("jsonl", ours.parent), before)
    assert derive("jsonl", str(ours)).samples == 2
    write("jsonl", ours.parent, batch_of(rows("new", n=9), [N], partition="x.y"))
    assert tars(ours.parent) == [documents(ours)[0]["images_tar"]]
    assert read("jsonl", ours.parent)["sample_id"].unique().to_pylist() == ["new"]


def test_tars_of_other_partitions_stay(tmp_path: Path) -> None:
    for _ in range(2):
        write("jsonl", tmp_path, [batch_of(rows(name), partition=name) for name in ("x", "x.y", "xy")])
    assert len(tars(tmp_path)) == 3
    assert read("jsonl", tmp_path).num_rows == 9


def test_an_object_store(tmp_path: Path) -> None:
    assert ShelfFileSystem.protocol == "shelf"
    url = f"shelf://{tmp_path}/out"
    for name in ("old", "new"):
        write("jsonl", url, batch_of(rows(name, n=1), [N], partition="p"))
    assert read("jsonl", url)["sample_id"].unique().to_pylist() == ["new"]
    assert len(tars(tmp_path / "out")) == 1
    assert derive("jsonl", f"{url}/p.jsonl.gz").digest == derive("jsonl", f"{tmp_path}/out/p.jsonl.gz").digest


def test_lines_of_others(tmp_path: Path) -> None:
    """What many people exchange: texts and images in parallel, names of members, further fields."""
    make_tar(tmp_path / "s.images.tar", [("img/1.png", PNG), ("unused.png", PNG)])
    payloads = [
        {"texts": ["t", None], "images": [None, "img/1.png"], "url": "u", "images_tar": 7},
        "",
        {"sample_id": "named", "texts": [None], "images": ["gone.png"]},
    ]
    path = tmp_path / "s.jsonl"
    path.write_text(
        "\n".join(p if isinstance(p, str) else json.dumps(p) for p in payloads)
    )  # no newline at the end
    reader = InterleavedJsonlReader(str(path))
    found = as_table(reader).to_pylist()
    assert [(r["sample_id"], r["position"], r["text_content"] or r["binary_content"]) for r in found] == [
        ("s/1", -1, None),
        ("s/1", 0, "t"),
        ("s/1", 1, PNG),
        ("named", -1, None),
        ("named", 0, None),
    ]
    assert (found[0]["url"], found[0]["images_tar"]) == ("u", 7)
    assert found[4]["materialize_error"] == "missing member 'gone.png'"
    report = write("parquet", tmp_path / "out", reader, on_materialize_error="warn")
    assert report.partitions[0].notes[str(path)]["unreferenced_members"] == ["unused.png"]
    assert derive("jsonl", str(path), "s").digest == derive("parquet", f"{tmp_path}/out/s.parquet").digest


def test_locators_lead_to_the_images(tmp_path: Path) -> None:
    make_tar(tmp_path / "s.tar", [("1.png", PNG)])
    (tmp_path / "s.jsonl").write_text(json.dumps({"images": ["1.png"]}))
    (batch,) = InterleavedJsonlReader(str(tmp_path / "s.jsonl"), materialize=False)
    assert batch.data["binary_content"].null_count == 2
    assert materialize(batch).data["binary_content"].to_pylist() == [None, PNG]


@pytest.mark.parametrize(
    "name", ["../x.images.tar", "/etc/x.images.tar", ".images.tar", "sub/x.images.tar", "passwd", 5]
)
def test_a_line_names_no_file_elsewhere(tmp_path: Path, ours: Path, name: object) -> None:
    make_tar(tmp_path / "x.images.tar", [("a.2.png", b"secret")])
    payloads = documents(ours)
    rewrite(ours, [{**payload, "images_tar": name} for payload in payloads])
    with pytest.raises(ShardError, match=r"x%2Ey\.jsonl\.gz: line 1: field 'images_tar'"):
        read("jsonl", ours)
    with pytest.raises(ShardError, match=r"x%2Ey\.jsonl\.gz: "):
        derive("jsonl", str(ours))


def test_names_of_images_are_names_in_the_tar_alone(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    references = ["../secret.png", str(tmp_path / "secret.png"), "secret.png", "file:///etc/passwd"]
    (tmp_path / "in").mkdir()
    make_tar(tmp_path / "in" / "s.images.tar", [("other.png", PNG)])
    (tmp_path / "in" / "s.jsonl").write_text(json.dumps({"images": references}))
    found = read("jsonl", tmp_path / "in", materialize=True)
    assert found["binary_content"].null_count == found.num_rows
    assert found["materialize_error"].null_count == 1  # of the metadata row


def test_lines_that_name_different_tars(ours: Path) -> None:
    first, second = documents(ours)
    rewrite(ours, [first, {**second, "images_tar": "other.images.tar"}])
    for look in (lambda: read("jsonl", ours), lambda: derive("jsonl", str(ours))):
        with pytest.raises(ShardError, match=r"x%2Ey\.jsonl\.gz: line 2: "):
            look()


def test_a_tar_that_is_gone(ours: Path) -> None:
    (ours.parent / tars(ours.parent)[0]).unlink()
    for look in (lambda: read("jsonl", ours), lambda: derive("jsonl", str(ours))):
        with pytest.raises(ShardError, match=r"its images are in .*\.images\.tar, which is not there"):
            look()
    found = as_table(InterleavedJsonlReader(str(ours), quarantine_errors=True))
    assert [error for error in found["materialize_error"].to_pylist() if error] == [
        "missing member 'a.2.png'",
        "missing member 'b%2Ec.2.png'",
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"sample_id": "z", "texts": ["to', "not JSON"),
        ("[1]", "no object but list"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ('{"texts": ["\\ud800"]}', "lone surrogate"),
        ('{"n": 1e999}', "larger than any float64"),
    ],
)
def test_a_bad_line_is_named_by_its_number(ours: Path, bad: str, reason: str) -> None:
    rewrite(ours, [*documents(ours), bad])
    with pytest.raises(ShardError, match=rf"x%2Ey\.jsonl\.gz: line 3: .*{reason}"):
        read("jsonl", ours)
    stream = (reader := InterleavedJsonlReader(str(ours), quarantine_errors=True)).open(
        reader.partitions()[0]
    )
    assert sum(batch.num_samples for batch in stream) == 2
    assert [loss.sample_id for loss in stream.losses] == ["line 3"]


def test_a_torn_file(ours: Path) -> None:
    long = [[os.urandom(300).hex(), *document["texts"][1:]] for document in documents(ours)]
    rewrite(
        ours, [document | {"texts": texts} for document, texts in zip(documents(ours), long, strict=True)]
    )
    ours.write_bytes(ours.read_bytes()[:-200])
    with pytest.raises(ShardError, match=r"x%2Ey\.jsonl\.gz: line \d: .*the gzip stream is cut here"):
        read("jsonl", ours)
    with pytest.raises(ShardError, match=r"x%2Ey\.jsonl\.gz: line \d: gzip cannot read it"):
        derive("jsonl", str(ours))
    stream = (reader := InterleavedJsonlReader(str(ours), quarantine_errors=True)).open(
        reader.partitions()[0]
    )
    list(stream)
    assert "truncated_tar" in {loss.kind for loss in stream.losses}


def test_a_line_of_any_length_is_not_read(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is refused by what it unpacks to, a line by its length, before memory holds it."""
    rewrite(ours, [*documents(ours), '{"sample_id": "' + "x" * 5000 + '"}'])
    monkeypatch.setattr("mm_assets.formats.webdataset.samples.MAX_JSON_BYTES", 4000)
    with pytest.raises(ShardError, match=r"line 3: json member of 50\d\d bytes, more than 4000"):
        read("jsonl", ours)
    monkeypatch.setattr("mm_assets.formats.tar.spool.unpacked_limit", lambda _: 2000)
    with pytest.raises(ShardError, match="unpacks to more than 2000 bytes"):
        read("jsonl", ours)


def test_what_packs_too_well_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no reader would take it."""
    monkeypatch.setattr(jsonl, "unpacked_limit", lambda size: 10 * size)
    batch = batch_of([item("a", 0, text_content="x" * 100_000)], partition="p")
    report = write("jsonl", tmp_path, batch)
    assert report.nbytes > 100_000
    same(read("jsonl", tmp_path), batch.data)


def test_a_member_of_no_line_is_found(ours: Path) -> None:
    first, _ = documents(ours)
    rewrite(ours, [first])
    with pytest.raises(ShardError, match="is of no line"):
        derive("jsonl", str(ours))


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "jsonl"])
def test_a_stray_file_beside_other_data_is_ignored_with_a_warning(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path / "data", batch_of(rows("a")))
    (tmp_path / "data" / "stats.jsonl").write_text("{}\n")
    with pytest.warns(UserWarning, match="1 file of JSON lines beside other data ignored"):
        assert detect_format(str(tmp_path / "data")) == kind


def test_lines_with_their_images_beside_other_data_are_not_ignored(ours: Path) -> None:
    write("parquet", ours.parent, batch_of(rows("a")))
    with pytest.raises(ValueError, match="holds jsonl and parquet; name one of them"):
        detect_format(str(ours.parent))


def test_a_bad_line_is_one_of_the_lines_not_of_the_images(tmp_path: Path) -> None:
    make_tar(tmp_path / "x.images.tar", [("p.png", PNG)])
    (tmp_path / "x.jsonl").write_text(json.dumps({"texts": ["t"], "images": [None]}) + "\n")
    reader = InterleavedJsonlReader(str(tmp_path / "x.jsonl"), sample_id_field="id")
    with pytest.raises(ShardError, match=r"/x\.jsonl: line 1: field 'id' \(sample_id_field\) is missing"):
        list(reader)
