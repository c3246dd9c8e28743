"""What can happen to an output behind our back: one byte, row, type, name or sample changed with tools of
others.

For datasets with a sample ``doc.one`` (columns ``n`` and ``score``, PNG images at positions 1 and 3) and a
sample ``dir/two`` whose text at position 0 holds the word "other".
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.datasets import write
from mm_assets_tests.formats.images.pictures import picture

Change = Callable[[pa.Table], pa.Table]


def cell(
    table: pa.Table, column: str, change: Callable[[Any], Any], sample: str, position: int = -1
) -> pa.Table:
    """One value changed."""
    rows = table.to_pylist()
    for row in rows:
        if (row["sample_id"], row["position"]) == (sample, position):
            row[column] = change(row[column])
    index = table.schema.get_field_index(column)
    return table.set_column(
        index,
        table.schema.field(index),
        pa.array([row[column] for row in rows], table.schema.field(index).type),
    )


def flipped(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


def swapped(table: pa.Table) -> pa.Table:
    images = {row["position"]: row["binary_content"] for row in of_sample(table, "doc.one").to_pylist()}
    return cell(
        cell(table, "binary_content", lambda _: images[3], "doc.one", 1),
        "binary_content",
        lambda _: images[1],
        "doc.one",
        3,
    )


def retyped(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("n")
    return table.set_column(index, pa.field("n", pa.string()), table.column("n").cast(pa.string()))


def of_sample(table: pa.Table, sample: str) -> pa.Table:
    return table.filter(pc.equal(table.column("sample_id"), sample))


def without(table: pa.Table, sample: str, position: int) -> pa.Table:
    return table.filter(
        pc.invert(
            pc.and_(pc.equal(table.column("sample_id"), sample), pc.equal(table.column("position"), position))
        )
    )


TABLE_CHANGES: dict[str, Change] = {
    "byte": lambda table: cell(table, "binary_content", flipped, "doc.one", 3),
    "row": lambda table: without(table, "doc.one", 1),
    "type": retyped,
    "swap": swapped,
    "rename": lambda table: table.rename_columns(
        [name.replace("score", "points") for name in table.column_names]
    ),
    "text": lambda table: cell(
        table, "text_content", lambda text: text.replace("other", "Other"), "dir/two", 0
    ),
    "null": lambda table: cell(table, "n", lambda _: None, "dir/two"),
    "sample": lambda table: pa.concat_tables([table, of_sample(table, "dir/two")]),
}


def change_parquet(path: Path, name: str) -> None:
    pq.write_table(TABLE_CHANGES[name](pq.read_table(path)), path)


def change_lance(path: Path, name: str) -> None:
    """With Lance's own operations where it has one, else by writing the table anew."""
    dataset = lance.dataset(str(path))
    if name == "row":
        dataset.delete("sample_id = 'doc.one' AND position = 1")
    elif name == "rename":
        dataset.alter_columns({"path": "score", "name": "points"})
    elif name == "text":
        dataset.update({"text_content": "'Other text'"}, where="sample_id = 'dir/two' AND position = 0")
    elif name == "null":
        dataset.update({"n": "NULL"}, where="sample_id = 'dir/two' AND position = -1")
    elif name == "sample":
        lance.write_dataset(of_sample(dataset.to_table(), "dir/two"), dataset.uri, mode="append")
    else:
        lance.write_dataset(TABLE_CHANGES[name](dataset.to_table()), dataset.uri, mode="overwrite")


def change_webdataset(path: Path, name: str) -> None:
    with tarfile.open(path) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    one, two = (json.loads(members[f"{key}.json"]) for key in ("doc%2Eone", "dir%2Ftwo"))
    images = [name for name in one["image_members"] if name is not None]
    if name == "byte":
        members[images[1]] = flipped(members[images[1]])
    elif name == "row":
        del members[images[0]]
        for entries in (one["images"], one["image_members"], one["_row_extra"]["image"]):
            entries[1] = None
    elif name == "type":
        one["_row_extra"]["metadata"]["n"], two["_row_extra"]["metadata"]["n"] = "5", "6"
    elif name == "swap":
        members[images[0]], members[images[1]] = members[images[1]], members[images[0]]
    elif name == "rename":
        for extra in (one["_row_extra"]["metadata"], two["_row_extra"]["metadata"]):
            extra["points"] = extra.pop("score")
    elif name == "text":
        two["texts"][0] = "Other text"
    elif name == "null":
        two["_row_extra"]["metadata"]["n"] = None
    members |= {"doc%2Eone.json": json.dumps(one).encode(), "dir%2Ftwo.json": json.dumps(two).encode()}
    again = [("dir%2Ftwo.json", members["dir%2Ftwo.json"])] if name == "sample" else []
    with tarfile.open(path, "w") as tar:
        for member, data in [*again, *members.items()]:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def change_arrow_cache(path: Path, name: str) -> None:
    """As one would who knows the metadata, too: the shard is the one that they tell of."""
    metadata = json.loads((path / "_metadata.json").read_text())
    (shard,) = (path / name for name in metadata["shard_filenames"])
    with pa.OSFile(str(shard)) as file:
        table = TABLE_CHANGES[name](pa.ipc.open_file(file).read_all())
    with pa.OSFile(str(shard), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    metadata |= {"num_rows": table.num_rows, "shard_row_counts": [table.num_rows]}
    metadata |= {
        "shard_sizes": [shard.stat().st_size],
        "shard_digests": [xxhash.xxh3_128_hexdigest(shard.read_bytes())],
    }
    (path / "_metadata.json").write_text(json.dumps(metadata, indent=2))


CHANGES: dict[str, Callable[[Path, str], None]] = {
    "parquet": change_parquet,
    "webdataset": change_webdataset,
    "lance": change_lance,
    "arrow_cache": change_arrow_cache,
}


PNG = picture(0)[1]


def rewrite(tar: Path, change: Any) -> None:
    """Every member of a tar, as (name, bytes), through a function that gives any number of them."""
    with tarfile.open(tar) as old:
        members = [(m.name, old.extractfile(m).read()) for m in old]
    with tarfile.open(tar, "w") as new:
        for name, data in (changed for member in members for changed in change(*member)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))


def write_tar(folder: Path | str, table: pa.Table) -> Path:
    write(
        "webdataset",
        folder,
        InterleavedBatch(table, (), "part"),
        on_materialize_error="warn",
        materialize=False,
    )
    return Path(folder, "part.tar")
