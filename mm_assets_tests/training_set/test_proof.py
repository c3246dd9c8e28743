"""The proof of a training set: what is not as in the sources, or as written, is found and made again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.model.errors import DataError
from mm_assets.model.json_codec import json_field
from mm_assets.training_set.plan import Recipe
from mm_assets.training_set.proof import as_written, make_proven, problem_of, prove, stamps_of
from mm_assets_tests.formats.datasets import batch_of, item, write
from mm_assets_tests.training_set.sets import RECIPE, Here, make_source, source, training_set, tree


def test_a_missing_sample_is_found_by_the_proof(made: Path, tmp_path: Path) -> None:
    target, sources = training_set(tmp_path / "set"), [source(made / "books")]
    report = target.make(sources, Recipe(), Here())
    tar = tmp_path / "set" / "train-000000.tar"
    data = tar.read_bytes().replace(b"text of books/doc.003", b"text of books/doc.004")
    tar.write_bytes(data)
    proof = prove(target, report.plan, sources, Here())
    assert len(proof.differences) == 1 and "sample 'books/doc.003', position 0" in proof.differences[0]


def test_a_type_that_is_another_in_the_set_is_found_by_the_proof(tmp_path: Path) -> None:
    """Though samples of several types make both columns JSON text in all."""
    number, text = pa.field("n", pa.int64()), json_field("n")
    for folder, values in {
        "numbers": [(number, 1), (text, '"x"')],
        "texts": [(text, "1"), (text, '"x"')],
    }.items():
        batches = [
            batch_of([item(f"s{place}", n=value)], [field], partition=f"part-{place}")
            for place, (field, value) in enumerate(values)
        ]
        write("webdataset", tmp_path / folder, batches)
    target = training_set(tmp_path / "set")
    report = target.make([source(tmp_path / "numbers", "x")], Recipe(), Here())
    assert prove(target, report.plan, [source(tmp_path / "numbers", "x")], Here()).differences == ()
    proof = prove(target, report.plan, [source(tmp_path / "texts", "x")], Here())
    assert proof.differences == ("columns of samples have other types in the set than in the sources",)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("webdataset", b"text of web/doc.020"),
        ("webdataset", b'"texts":'),
        ("mds", b"text of web/doc.020"),
        ("arrow_cache", b"text of web/doc.020"),
    ],
)
def test_what_a_proof_finds_damaged_is_made_again_at_once(
    made: Path, tmp_path: Path, kind: str, part: bytes
) -> None:
    target, sources = training_set(tmp_path / "set", kind), [source(made / "web")]
    report = target.make(sources, RECIPE, Here())
    before = tree(tmp_path / "set")
    (shard,) = [row["shard"] for row in report.plan.to_pylist() if row["sample_id"] == "web/doc.020"]
    name = Path(shard.removesuffix("/_metadata.json")).stem
    for file in tmp_path.glob(f"set/**/{name}*"):
        for path in [file, *file.glob("*.arrow")]:
            if path.is_file():
                path.write_bytes(path.read_bytes().replace(part, part[::-1]))
    assert tree(tmp_path / "set") != before
    again = Here()
    report, proof = make_proven(target, sources, RECIPE, again)
    assert again.done == [name] and proof is not None and proof.differences == ()
    assert [made.name for made in report.shards if not made.is_kept] == [name]
    if kind != "arrow_cache":  # whose files have other names where they replace some
        assert tree(tmp_path / "set") == before


def test_a_damaged_source_has_no_shard_written_again(tmp_path: Path) -> None:
    make_source(tmp_path / "web", "web")
    target, sources = training_set(tmp_path / "set"), [source(tmp_path / "web")]
    target.make(sources, RECIPE, Here())
    tar = tmp_path / "web" / "web-1.tar"
    found = os.stat(tar)
    data = tar.read_bytes()
    at = len(data) // 2 // 512 * 512
    tar.write_bytes(data[:at].replace(b'"texts":', b':"stxet"') + data[at:])
    os.utime(tar, ns=(found.st_atime_ns, found.st_mtime_ns))
    again = Here()
    with pytest.raises(DataError, match="web-1.tar"):
        make_proven(target, sources, RECIPE, again)
    assert again.done == []


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_tar_that_is_gone_is_not_as_it_was_written(made: Path, tmp_path: Path, is_noted: bool) -> None:
    """Also where the note on it has no digest."""
    target = training_set(tmp_path / "set")
    digest = target.make([source(made / "books")], Recipe(shards=2), Here()).digest
    if not is_noted:
        note = tmp_path / "set" / ".training" / "train-000000.json"
        note.write_text(json.dumps({**json.loads(note.read_text()), "content": None}))
    written = as_written(target, stamps_of(target))
    assert problem_of(target, digest, written) == ""
    (tmp_path / "set" / "train-000000.tar").unlink()
    assert problem_of(target, digest, written) == "train-000000.tar is not as it was written"
