"""Canonical readers find what was written, in its very types, and digest it as the writer did."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from mm_assets.accounting import canonical
from mm_assets.accounting.canonical import CanonicalSource, derive
from mm_assets.accounting.canonical.tables import cache_problems
from mm_assets.graph.shard_work import ProofJob, ProofTarget, prove_shard
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import json_field
from mm_assets.model.schema import SchemaMismatch, schema_to_text
from mm_assets_tests.accounting.mutations import rewrite
from mm_assets_tests.formats.conformance.outputs import EXTRAS, PNG, ROWS, TABLE, place, rows_of
from mm_assets_tests.formats.datasets import batch_of, item, table_of, write
from mm_assets_tests.formats.raw_tars import make_tar


def sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([("sample_id", "ascending"), ("position", "ascending"), ("modality", "descending")])


def test_batches_are_small_whatever_the_row_group(tmp_path: Path) -> None:
    rows = [item(f"s{i}", 0, "image", binary_content=bytes([i]) * (1 << 20)) for i in range(40)]
    pq.write_table(table_of(rows), tmp_path / "x.parquet", row_group_size=40)
    write("lance", tmp_path, batch_of(rows, partition="part"))
    write("webdataset", tmp_path, batch_of(rows, partition="part"))
    for source in (
        CanonicalSource("parquet", str(tmp_path / "x.parquet")),
        place("lance", tmp_path),
        place("webdataset", tmp_path),
    ):
        found = list(source.tables())
        assert sum(table.num_rows for table in found) == 40
        assert max(table.nbytes for table in found) < 17 << 20


@pytest.mark.parametrize(
    ("rows", "text"), [(5000, "t"), (40, "t" * (1 << 18))], ids=["many rows", "much text"]
)
def test_row_groups_of_much_else_than_images(rows: int, text: str, tmp_path: Path) -> None:
    table = table_of(
        [
            item(f"s{i}", 0, text_content=f"{i}{text}", binary_content=b"b" * (i % 3) or None)
            for i in range(rows)
        ]
    )
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=rows)
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=10)
    one, many = (CanonicalSource("parquet", str(tmp_path / f"{name}.parquet")) for name in ("one", "many"))
    assert derive("parquet", one.uri) == derive("parquet", many.uri)
    assert all(part.blobs is None for part in one.parts())
    assert rows_of(one).equals(rows_of(many))
    assert max(part.table.nbytes for part in one.parts()) < 17 << 20


def test_damage_among_the_images_is_named(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "x.parquet", compression="none", use_dictionary=False)
    start = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(5).data_page_offset
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[start : start + 16] = b"\xff" * 16
    (tmp_path / "x.parquet").write_bytes(data)
    with pytest.raises(ShardError, match="x.parquet: pyarrow cannot read it"):
        derive("parquet", str(tmp_path / "x.parquet"))


def test_types_are_resolved_in_files_of_others(tmp_path: Path) -> None:
    """Other writers have large strings, 64-bit positions, dictionaries."""
    plain = TABLE.drop_columns(["j", "when"])
    wide = {pa.string(): pa.large_string(), pa.int32(): pa.int64(), pa.large_binary(): pa.binary()}
    odd = plain.cast(pa.schema([field.with_type(wide.get(field.type, field.type)) for field in plain.schema]))
    odd = odd.set_column(2, "modality", odd.column(2).cast(pa.string()).dictionary_encode())
    pq.write_table(odd, tmp_path / "odd.parquet")
    pq.write_table(plain, tmp_path / "plain.parquet")
    assert pq.read_schema(tmp_path / "odd.parquet").field("position").type == pa.int64()
    found = {name: derive("parquet", str(tmp_path / f"{name}.parquet")) for name in ("odd", "plain")}
    assert (found["odd"].digest, found["odd"].images) == (found["plain"].digest, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["modality"]), "'modality' is missing"),
        (lambda t: t.set_column(0, "sample_id", pa.array([None, *"abcd"])), "'sample_id' is null in 1 rows"),
        (lambda t: t.append_column("n", t.column("n")), "'n' occurs twice"),
        (
            lambda t: t.append_column("binary_content", t.column("binary_content")),
            "'binary_content' occurs twice",
        ),
    ],
)
def test_tables_that_are_no_items(change: Any, message: str, tmp_path: Path) -> None:
    pq.write_table(change(TABLE), tmp_path / "x.parquet")
    with pytest.raises(ShardError, match=f"x.parquet: .*{message}"):
        derive("parquet", str(tmp_path / "x.parquet"))


def test_a_schema_to_digest_in(tmp_path: Path) -> None:
    """Columns that other partitions widened are digested in the types they were written in, if asked."""
    first = InterleavedBatch(table_of(ROWS[:2], EXTRAS), (), "one")
    second = InterleavedBatch(
        table_of([item("y", n="text", j="1")], [pa.field("n", pa.string()), json_field("j")]), (), "two"
    )
    written = write("lance", tmp_path, [first]).partitions[0]
    write("lance", tmp_path, [second])
    uri = str(tmp_path / "items.lance")
    assert derive("lance", uri, "one").digest != written.digest
    assert derive("lance", uri, "one", first.data.schema).digest == written.digest
    assert derive("lance", uri, "gone").rows == 0
    with pytest.raises(SchemaMismatch, match="'n'"):
        derive("lance", uri, "two", first.data.schema)


def test_lance_rows_that_moved_to_other_fragments(tmp_path: Path) -> None:
    batches = [
        InterleavedBatch(table_of([item(name, i, text_content="t" * i) for i in range(3)]), (), name)
        for name in ("one", "two")
    ]
    reports = write("lance", tmp_path, batches).partitions
    uri = str(tmp_path / "items.lance")
    lance.dataset(uri).optimize.compact_files()
    assert len(lance.dataset(uri).get_fragments()) == 1
    assert [derive("lance", uri, name).digest for name in ("one", "two")] == [
        report.digest for report in reports
    ]
    lance.dataset(uri).delete("sample_id = 'one' AND position = 1")
    assert [derive("lance", uri, name).rows for name in ("one", "two", None)] == [2, 3, 5]


def test_raw_tars_are_read_by_our_own_reader(tmp_path: Path) -> None:
    payload = {"texts": ["t", None], "images": [None, "k.png"], "url": "u"}
    raw = make_tar(tmp_path / "raw" / "r.tar", [("k.json", payload), ("k.png", PNG)])
    found = rows_of(CanonicalSource("webdataset", str(raw), relative_to=str(raw.parent)))
    assert [row["binary_content"] for row in found.to_pylist()] == [None, None, PNG]
    assert '"path": "r.tar"' in found.column("source_ref")[0].as_py()
    assert str(raw) in rows_of(CanonicalSource("webdataset", str(raw))).column("source_ref")[0].as_py()


def test_a_tar_without_our_bookkeeping_is_read_by_our_own_reader(tmp_path: Path) -> None:
    payload = {
        "sample_id": "s",
        "texts": [None],
        "images": ["0.png"],
        "_row_extra": {"text": [None], "image": [{"w": 3}], "metadata": {}},
    }
    tar = make_tar(tmp_path / "n.tar", [("s.0.png", PNG), ("s.json", payload)])
    (found,) = [table for table in CanonicalSource("webdataset", str(tar)).tables() if table.num_rows]
    assert found.select(["position", "modality", "w", "binary_content"]).to_pylist()[1] == {
        "position": 0, "modality": "image", "w": 3, "binary_content": PNG,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_remote_files(kind: str, tmp_path: Path) -> None:
    import fsspec

    report = write(
        kind, tmp_path, InterleavedBatch(TABLE, (), "part"), on_materialize_error="warn", materialize=False
    )
    source = place(kind, tmp_path)
    url = f"memory://{tmp_path}/part"
    with fsspec.open(url, "wb") as file:
        file.write(Path(str(source.uri)).read_bytes())
    assert derive(kind, url).digest == report.partitions[0].digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name, data: [(name, data)] * 2, "sample 'a' occurs twice"),
        (lambda name, data: [] if name == "a.json" else [(name, data)], "key 'a' has no json"),
        (
            lambda name, data: [(name, data.replace(b'"sample_id":', b'"sample_id":1,"s":'))],
            "'s' is not of the layout|sample_id is 1",
        ),
        (
            lambda name, data: [(name, data[:-2] if name.endswith("b%2Ec%2Fd.json") else data)],
            "json of the sample with key 'b%2Ec%2Fd'",
        ),
        (
            lambda name, data: [(name, data.replace(b'"texts":', b'"texts":3,"images":'))],
            "sample 'a': its json is not as the layout says",
        ),
        (
            lambda name, data: [(name, data.replace(b'"schema":"', b'"schema":"A'))],
            "sample 'a': its json states no column types",
        ),
        (
            lambda name, data: [(name, data.replace(b'"0.png"', b'"__key__"'))],
            "sample 'a': its json is not as the layout says",
        ),
        (
            lambda name, data: [(name, data.replace(b'"modality":"image"', b'"modality":"sound"'))],
            "modality 'sound' and position 2",
        ),
    ],
)
def test_tars_that_are_not_as_documented(change: Any, message: str, tmp_path: Path) -> None:
    write(
        "webdataset",
        tmp_path,
        InterleavedBatch(TABLE, (), "part"),
        on_materialize_error="warn",
        materialize=False,
    )
    rewrite(tmp_path / "part.tar", change)
    with pytest.raises(ShardError, match=f"part.tar.*({message})"):
        derive("webdataset", str(tmp_path / "part.tar"))


def test_values_of_another_type_than_stated_have_their_own(tmp_path: Path) -> None:
    write(
        "webdataset",
        tmp_path,
        InterleavedBatch(TABLE, (), "part"),
        on_materialize_error="warn",
        materialize=False,
    )
    rewrite(
        tmp_path / "part.tar", lambda name, data: [(name, data.replace(b'{"n":5,', b'{"n":5.0,"added":[1],'))]
    )
    found = [
        table
        for table in CanonicalSource("webdataset", str(tmp_path / "part.tar")).tables()
        if table.num_rows
    ]
    assert sum(table.num_rows for table in found) == 5
    odd = found[0].slice(0, 1)
    assert odd.schema.field("n").type == pa.float64()
    assert odd.select(["sample_id", "n", "j", "added"]).to_pylist() == [
        {"sample_id": "a", "n": 5.0, "j": '{"k":[1,null]}', "added": "[1]"}
    ]
    assert all(table.schema.field("n").type == pa.int64() for table in found[1:])


@pytest.mark.parametrize("root", ["", "memory://"])
def test_the_files_of_a_cache_are_digested_in_the_read_of_its_rows(root: str, tmp_path: Path) -> None:
    """Each byte counts, also those that no row is made of; and the digest is that of another whole read."""
    rows = [item(f"s{i}", 0, "image", binary_content=bytes([i]) * (3 << 20)) for i in range(20)]
    write("arrow_cache", tmp_path, batch_of(rows, partition="part"))
    (file,) = (tmp_path / "part").glob("*.arrow")
    folder = str(tmp_path / "part")
    if root:
        folder = f"{root}{folder}"
        fsspec.filesystem("memory").put(str(tmp_path / "part"), folder, recursive=True)
    found = derive("arrow_cache", folder)
    assert found == derive("arrow_cache", folder, schema=found.schema)
    assert found.rows == 20
    data = file.read_bytes()
    assert found.digests == {file.name: xxhash.xxh3_128_hexdigest(data)}
    assert list(cache_problems(folder, found)) == list(cache_problems(folder)) == []
    if root:
        return
    for at in (2, 7, 300, len(data) // 2, len(data) - 700, len(data) - 12):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            read = derive("arrow_cache", folder)
        except ShardError:
            continue
        (problem,) = cache_problems(folder, read)
        assert "its digest is" in problem


def test_what_shards_share_is_read_once_within_a_proof() -> None:
    answer = partial(next, iter(range(10)))
    assert [canonical.read_once("place", answer) for _ in range(2)] == [0, 1]  # in no proof
    for proof, expected in (("p", 2), ("q", 3), ("p", 4)):
        with canonical.one_proof(proof):
            assert [canonical.read_once("place", answer) for _ in range(3)] == [expected] * 3
    with canonical.one_proof("p"):
        assert canonical.forget_reads() and not canonical.forget_reads()
        assert canonical.read_once("place", answer) == 5


def test_a_table_that_a_proof_has_left_open_is_opened_anew_if_it_cannot_be_read(tmp_path: Path) -> None:
    """Its files were merged meanwhile, and those of the version that was open are gone."""
    for key in "ab":
        write("lance", tmp_path, batch_of([item(key, 0, text_content=f"text of {key}")], partition=key))
    uri = str(place("lance", tmp_path).uri)
    jobs = []
    for key in "ab":
        found = derive("lance", uri, key)
        account = {
            "written": {
                name: getattr(found, name) for name in ("rows", "samples", "images", "texts", "digest")
            },
            "lost": {"rows": 0, "digest": ""},
            "schema": schema_to_text(found.schema),
            "made_by": "",
        }
        target = ProofTarget("lance_table", "lance", uri)
        jobs.append(ProofJob(key, target, account, str(tmp_path), proof="p"))
    assert prove_shard(jobs[0]).problems == ()
    table = lance.dataset(uri)
    table.optimize.compact_files()
    table.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with canonical.one_proof("p"), pytest.raises(ShardError, match="lance cannot read it"):
        derive("lance", uri, "b")  # by the version that is open
    assert prove_shard(jobs[1]).problems == ()
