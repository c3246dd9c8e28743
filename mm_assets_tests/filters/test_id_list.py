"""Lists of ids: each form, what is told of bad ones, what they drop and keep, what fingerprints know."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.filters import DROP_SAMPLE, FLAG, Filter, FilterSettingError
from mm_assets.filters.chain import FilterChain
from mm_assets.filters.id_list import DropIds, IdList, KeepIds, SortedIds
from mm_assets.filters.registry import AspectRatioFilter, chain_of
from mm_assets.graph import digest
from mm_assets.model.samples import StepResult
from mm_assets.storage.small_files import hashes_of
from mm_assets_tests.filters.filter_sets import png, sample
from mm_assets_tests.formats.datasets import batch_of

WIDE, SQUARE = png(90, 10), png(30, 30)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def parquet(name: str, **columns: Any) -> str:
    pq.write_table(pa.table(columns), name)
    return name


def chain(*filters: Filter[Any]) -> FilterChain:
    made = chain_of(filters)
    assert made is not None
    arrived = pickle.loads(pickle.dumps(made.fitted({}, [], "lists")))  # noqa: S301  (as a worker has it)
    assert isinstance(arrived, FilterChain)
    return arrived


def applied(*filters: Filter[Any]) -> StepResult:
    """Samples a, b and c: a text, then two images, the last one faulty."""
    samples = [sample(name, "one two", WIDE, SQUARE, None) for name in ("a", "b", "c")]
    return chain(*filters)(batch_of([row for rows in samples for row in rows]))


def left(result: StepResult) -> list[str]:
    rows = result.batch.data.to_pylist()
    return [f"{row['sample_id']}{row['position']}" for row in rows if row["modality"] != "metadata"]


A, B, C = ([f"{name}{position}" for position in range(4)] for name in "abc")


@pytest.mark.parametrize(
    "name",
    [
        *("ids.txt", "ids", "ids.CSV", "id.csv", "ids.tsv", "quoted.csv"),
        *("ids.parquet", "id.parquet", "large.parquet"),
    ],
)
def test_samples_in_each_form(name: str) -> None:
    match name:
        case "ids.txt":
            write(name, "\ufeffb\r\n\nnobody\nb")
        case "ids":
            write(name, "b\n")
        case "ids.CSV":
            write(name, "note,sample_id\n7,b\n8,nobody\n")
        case "id.csv":
            write(name, "id\nb\n")
        case "ids.tsv":
            write(name, "sample_id\tnote\nb\tx,y\n")
        case "ids.parquet":
            parquet(name, sample_id=["b", "nobody"], id=["a", "c"])
        case "id.parquet":
            parquet(name, id=["b"], group=[3])
        case "large.parquet":
            parquet(name, sample_id=pa.array(["b"], pa.large_string()))
        case _:
            write(name, '"sample_id","reason"\n"b","too,\nlong"\n')
    result = applied(DropIds((name,)))
    assert left(result) == [*A, *C]
    assert {loss.kind for loss in result.losses} == {"drop_ids"}
    reason = "too, long" if name == "quoted.csv" else f"listed in {name}"
    assert {loss.reason for loss in result.losses} == {reason}
    digest_of_file = IdList.of(os.path.abspath(name)).digest
    assert {loss.threshold for loss in result.losses} == {f"{name} xxh3:{digest_of_file}"}
    assert left(applied(KeepIds((name,)))) == B
    assert {loss.reason for loss in applied(KeepIds((name,))).losses} == {"in no list"}


def test_numbers_are_ids_too() -> None:
    parquet("n.parquet", sample_id=[7, 8])
    result = chain(DropIds(("n.parquet",)))(batch_of([*sample("7", "t"), *sample("9", "t")]))
    assert left(result) == ["90"]


def test_images_by_position_and_by_bytes() -> None:
    write(
        "items.csv",
        "sample_id,position,reason\nb,1,blurred\nb,2,\na,0,a text\nc,3,an error row\nx,1,nobody\n",
    )
    result = applied(DropIds(("items.csv",)))
    assert left(result) == [*A, "b0", "b3", *C]  # texts and error rows are no images that filters judge
    assert [loss.reason for loss in result.losses] == ["blurred", "listed in items.csv"]
    assert left(applied(KeepIds(("items.csv",)))) == ["a0", "a3", "b0", "b1", "b2", "b3", "c0", "c3"]
    sha256 = hashlib.sha256(WIDE).hexdigest()
    parquet("bytes.parquet", sha256=[sha256.upper(), "0" * 64])
    assert left(applied(DropIds(("bytes.parquet",)))) == [
        "a0",
        "a2",
        "a3",
        "b0",
        "b2",
        "b3",
        "c0",
        "c2",
        "c3",
    ]
    both = DropIds(("bytes.parquet", write("ids.txt", "a\n"), "items.csv"))
    assert left(applied(both)) == ["b0", "b3", "c0", "c2", "c3"]


def test_actions() -> None:
    write("items.csv", "sample_id,position\nb,1\n")
    write("ids.txt", "c\n")
    assert left(applied(DropIds(("items.csv",), action=DROP_SAMPLE))) == [*A, *C]
    flagged = applied(DropIds(("items.csv", "ids.txt"), action=FLAG))
    assert left(flagged) == [*A, *B, *C]
    assert [(loss.sample_id, loss.position) for loss in flagged.flags] == [("b", 1), ("c", -1)]
    assert DropIds(("ids.txt",)).opened().action == DROP_SAMPLE
    # The list comes before other filters.
    result = applied(DropIds(("items.csv",)), AspectRatioFilter(0, 2))
    assert [loss.kind for loss in result.losses] == ["aspect_ratio", "drop_ids", "aspect_ratio"]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("none.csv", None, "none.csv"),
        ("a.csv", "url,x\n1,2\n", "a.csv: no column sample_id or sha256; its columns: 'url', 'x'"),
        ("a.csv", "", "a.csv: not a readable csv file: CSV parse error: Empty CSV file"),
        ("a.csv", "sample_id,sha256\na,b\n", "a.csv: it has sample_id and sha256: leave one of them out"),
        ("a.csv", "sample_id,position\na,1\nb,x\n", "a.csv: row 2: position: 'x' is no position"),
        ("a.csv", "sample_id,position\na,1\nb,-1\n", "a.csv: row 2: position: '-1' is no position"),
        ("a.csv", "sample_id,position\na,1\nb,\n", "a.csv: row 2: position: no value"),
        ("a.csv", "sample_id,position\na,99999999999\n", "'99999999999' is no position"),
        ("a.csv", "sample_id,x\na,1\n,2\n", "a.csv: row 2: sample_id: no value"),
        ("a.csv", "id,x\na,1\n,2\n", "a.csv: row 2: id: no value"),
        ("a.csv", "sha256\nabc\n", "a.csv: row 1: sha256: 'abc' is not 64 hex digits"),
        ("a.csv", "sample_id,x\na,1\nb,2,3\n", "a.csv: .* CSV parse error: .*Expected 2 columns"),
        ("a.csv", b"sample_id\na\n\xff\n", "a.csv: not a readable csv file: .*UTF"),
        ("a.txt", b"a\nb\n\xff\n", "a.txt: line 3: not UTF-8; lists with columns end in .parquet or .csv"),
        ("a.parquet", b"PAR1 no", "a.parquet: not a readable parquet file: "),
        ("a.csv", "sample_id,x,sample_id\na,1,b\n", "a.csv: it has 2 columns sample_id: leave one"),
        ("a.parquet", {"x": [1]}, "a.parquet: no column sample_id or sha256; its columns: 'x'"),
        ("a.parquet", {"sample_id": [1.5]}, "a.parquet: column 'sample_id' is of type double"),
        ("a.parquet", {"sample_id": ["a", None]}, "a.parquet: row 2: sample_id: no value"),
        ("a.parquet", {"sample_id": ["a"], "position": ["1x"]}, "row 1: position: '1x' is no position"),
        ("a.parquet", {"sample_id": ["a"], "reason": [[1]]}, "a.parquet: column 'reason' is of type list"),
        ("a.parquet", {"sample_id": ["a"] * 1001, "reason": [str(n) for n in range(1001)]},
         "a.parquet: reason: 1,001 different ones; at most 1,000 can be told"),
    ],
)  # fmt: skip
def test_a_bad_list_is_one_line(name: str, content: Any, line: str) -> None:
    if isinstance(content, dict):
        parquet(name, **content)
    elif content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FilterSettingError, match=line) as told:
        chain(DropIds((name,)))
    assert str(told.value).startswith("drop_ids: ")
    assert "\n" not in str(told.value)
    assert not Path("lists").exists()


def test_two_columns_of_one_name_in_parquet_are_one_line() -> None:
    for name in ("sample_id", "reason"):
        table = pa.table([pa.array(["a"])] * 3, names=["sample_id", name, name])
        pq.write_table(table, "a.parquet")
        with pytest.raises(FilterSettingError, match=f"a.parquet: it has . columns {name}: leave one"):
            chain(DropIds(("a.parquet",)))


def test_folders_and_patterns() -> None:
    Path("many").mkdir()
    parquet("many/part-0.parquet", sample_id=["a"])
    write("many/part-1.csv", "sample_id\nc\n")
    write("many/_SUCCESS", "")
    assert left(applied(DropIds(("many",)))) == B
    assert left(applied(DropIds(("many/*.csv",)))) == [*A, *B]


def test_fingerprints_know_the_content_and_not_the_place() -> None:
    def fingerprint(kind: type[DropIds | KeepIds], *files: str) -> str:
        return digest([chain(kind(files))])

    first = fingerprint(DropIds, write("ids.txt", "a\n"))
    Path("elsewhere").mkdir()
    assert fingerprint(DropIds, write("elsewhere/other.txt", "a\n")) == first
    assert fingerprint(KeepIds, "ids.txt") != first
    write("ids.txt", "a\nb\n")
    assert fingerprint(DropIds, "ids.txt") != first
    write("ids.txt", "a\n")
    assert fingerprint(DropIds, "ids.txt") == first
    assert fingerprint(DropIds, write("ids.csv", "a\n"[:0] + "sample_id\na\n")) != first


def test_the_copy_is_what_is_applied_and_is_written_once() -> None:
    made = chain(DropIds((parquet("dup.parquet", sample_id=["b", "a", "b"], reason=["x", None, "y"]),)))
    (copy,) = Path("lists").iterdir()
    assert copy.stem == made.samples[0].digests[0]  # type: ignore[attr-defined]
    table = pq.read_table(copy)
    assert sorted(zip(*table.select(["sample_id", "reason"]).to_pydict().values(), strict=True)) == [
        ("a", None),
        ("b", "x"),
    ]
    assert table["hash"].to_pylist() == sorted(table["hash"].to_pylist())
    written = copy.stat().st_mtime_ns
    Path("dup.parquet").unlink()
    assert left(made(batch_of([*sample("a", "t"), *sample("c", "t")]))) == ["c0"]
    chain(DropIds((parquet("again.parquet", sample_id=["b", "a", "b"], reason=["x", None, "y"]),)))
    assert copy.stat().st_mtime_ns == written


def test_a_list_that_changes_after_it_was_looked_at_is_not_applied() -> None:
    made = chain_of([DropIds((write("ids.txt", "a\n"),))])
    assert made is not None
    write("ids.txt", "b\n")
    with pytest.raises(FilterSettingError, match=r"ids\.txt: changed while it was read: try again"):
        made.fitted({}, [], "lists")


def test_reasons_can_be_printed() -> None:
    parquet("dup.parquet", sample_id=["b"], reason=["\x1b[31mred\n" + "x" * 500])
    (reason,) = {loss.reason for loss in applied(DropIds(("dup.parquet",))).losses}
    assert reason == "[31mred " + "x" * 92


def test_equal_hashes_of_other_ids_are_told_apart() -> None:
    """Forged hashes: all ids have the same."""
    ids = [f"id{number}" for number in range(5)]
    table = pa.table({"sample_id": ids, "hash": pa.array([hashes_of(["id3"])[0]] * 5, pa.uint64())})
    assert SortedIds(table).find(["id3", "id9"]).tolist() == [3, -1]
    assert SortedIds(table.slice(0, 0)).find(["id3"]).tolist() == [-1]


def test_a_chain_in_one_process_reads_the_files_themselves() -> None:
    made = chain_of([DropIds((write("ids.txt", "b\n"),))])
    assert made is not None
    assert left(made(batch_of([*sample("a", "t"), *sample("b", "t")]))) == ["a0"]
    assert not Path("lists").exists()


def test_what_names_nothing_is_counted() -> None:
    write("ids.txt", "a\nnobody\nnobody else\n")
    write("items.csv", "sample_id,position\nb,1\nx,1\n")
    (made,) = chain(DropIds(("ids.txt", "items.csv"))).filters
    assert isinstance(made, DropIds)
    marks: dict[str, Any] = {}
    made.mark(marks, ["a", "b"], [("b", 1), ("b", 2)], [])
    assert made.unmarked(marks) == [
        "drop_ids: 2 of 3 rows of ids.txt name nothing in these shards",
        "drop_ids: 1 of 2 rows of items.csv name nothing in these shards",
    ]
