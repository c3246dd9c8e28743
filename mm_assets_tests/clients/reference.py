"""The outputs of DESIGN section 6, written by hand from raw shards with tarfile, pyarrow and lance.

Not a second implementation to compare ours with: it is what the clients' scripts are proven on, so that a
script that fails on our outputs speaks about our outputs. Good for sets that fit in memory.
"""

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets_tests.clients.truth import raw_samples

_MAGIC = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8", "jpg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)
_MIME = {"jpg": "image/jpeg"}
_JSON = {b"mm_assets:encoding": b"json"}
_ARROW = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "json": pa.string(),
}


@dataclass
class Sample:
    sample_id: str
    texts: list[str | None]
    images: list[bytes | None]
    extra: dict[str, Any]


def key_of(name: str) -> str:
    key = quote(name, safe="").replace(".", "%2E")
    if key[:1] in ("_", "-", "~"):
        key = f"%{ord(key[0]):02X}{key[1:]}"
    return key if 0 < len(key) <= 80 else "=" + hashlib.sha256(name.encode()).hexdigest()


def extension_of(data: bytes) -> str:
    return next((extension for magic, extension in _MAGIC if data.startswith(magic)), "webp")


def read_partitions(raw: Path, per_image: Sequence[str], per_text: Sequence[str]) -> dict[str, list[Sample]]:
    partitions: dict[str, list[Sample]] = {}
    for shard in sorted(raw.rglob("*.tar")):
        samples = []
        for sample_id, truth, images in raw_samples(shard, per_image, per_text):
            length = max(len(truth["texts"]), len(images))
            texts = truth["texts"] + [None] * (length - len(truth["texts"]))
            images = images + [None] * (length - len(images))
            extra = {
                "metadata": truth["metadata"],
                "text": truth["text_extra"],
                "image": truth["image_extra"],
            }
            samples.append(Sample(sample_id, texts, images, extra))
        partitions[key_of(str(shard.relative_to(raw).with_suffix("")))] = samples
    return partitions


def column_kinds(samples: Sequence[Sample]) -> dict[str, str]:
    """Kind of every extra column: one of _ARROW."""
    seen: dict[str, set[str]] = {}
    names = {bool: "bool", int: "int64", float: "float64", str: "string"}
    for sample in samples:
        entries = [sample.extra["metadata"], *sample.extra["text"], *sample.extra["image"]]
        for name, value in (item for entry in entries for item in (entry or {}).items()):
            seen.setdefault(name, set()).add(names.get(type(value), "json"))
    merged = {name: ({"float64"} if kinds == {"int64", "float64"} else kinds) for name, kinds in seen.items()}
    return {name: next(iter(kinds)) if len(kinds) == 1 else "json" for name, kinds in merged.items()}


# ------------------------------------------------------------------------------------------------------------
# tars


def _payload(sample: Sample, columns: Sequence[str]) -> dict[str, Any]:
    refs = [None if data is None else f"{at}.{extension_of(data)}" for at, data in enumerate(sample.images)]

    def entries(side: str, items: Sequence[object]) -> list[dict[str, Any] | None]:
        given = sample.extra[side] + [None] * len(items)
        full = [{name: (given[at] or {}).get(name) for name in columns} for at in range(len(items))]
        return [None if item is None else entry for item, entry in zip(items, full, strict=True)]

    return {
        "sample_id": sample.sample_id,
        "texts": sample.texts,
        "images": refs,
        "image_members": [None if ref is None else f"{key_of(sample.sample_id)}.{ref}" for ref in refs],
        "_row_extra": {
            "text": entries("text", sample.texts),
            "image": entries("image", sample.images),
            "metadata": {name: sample.extra["metadata"].get(name) for name in columns},
        },
        "_row_errors": [],
    }


def _write_tar(path: Path, samples: Sequence[Sample], columns: Sequence[str]) -> None:
    offsets = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            payload = _payload(sample, columns)
            members = [
                (name, data)
                for name, data in zip(payload["image_members"], sample.images, strict=True)
                if data is not None
            ]
            members.append(
                (f"{key_of(sample.sample_id)}.json", json.dumps(payload, ensure_ascii=False).encode())
            )
            offsets.append(tar.offset)
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        offsets.append(tar.offset)
    Path(f"{path}.idx").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))


def _card(kinds: dict[str, str], references: Sequence[str]) -> str:
    columns = (
        "[" + ", ".join(f"{{name: {json.dumps(name)}, dtype: {kind}}}" for name, kind in kinds.items()) + "]"
    )
    extra = (
        f"{{name: _row_extra, struct: [{{name: text, list: {columns}}}, {{name: image, list: {columns}}}, "
        f"{{name: metadata, struct: {columns}}}]}}"
    )
    strings = ", ".join(
        f"{{name: {name}, dtype: string}}" for name in ("modality", "content_type", "materialize_error")
    )
    rest = f"{{name: extra, struct: {columns}}}"
    errors = f"{{name: _row_errors, list: [{{name: position, dtype: int32}}, {strings}, {rest}]}}"
    lists = ", ".join(f"{{name: {name}, list: string}}" for name in ("texts", "images", "image_members"))
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        '  data_files: [{split: train, path: "*.tar"}]',
        "dataset_info:",
        "  config_name: default",
        "  features:",
        "  - {name: __key__, dtype: string}",
        "  - {name: __url__, dtype: string}",
        "  - name: json",
        f"    struct: [{{name: sample_id, dtype: string}}, {lists}, {extra}, {errors}]",
        *(f"  - {{name: {reference}, dtype: image}}" for reference in references),
        "---",
    ]
    return "\n".join(lines) + "\n"


def write_webdataset(root: Path, partitions: dict[str, list[Sample]]) -> None:
    (root / ".nv-meta").mkdir(parents=True)
    partitions = {name: samples for name, samples in partitions.items() if samples}
    kinds = column_kinds([sample for samples in partitions.values() for sample in samples])
    for name, samples in partitions.items():
        _write_tar(root / f"{name}.tar", samples, list(kinds))
    counts = {f"{name}.tar": len(samples) for name, samples in partitions.items()}
    shards = [
        {"url": name, "nsamples": count, "filesize": (root / name).stat().st_size}
        for name, count in counts.items()
    ]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "reference", "shardlist": shards}
    (root / "index.json").write_text(json.dumps(index))
    references = {
        f"{at}.{extension_of(data)}"
        for samples in partitions.values()
        for sample in samples
        for at, data in enumerate(sample.images)
        if data is not None
    }
    (root / "README.md").write_text(_card(kinds, sorted(references)))
    meta = root / ".nv-meta"
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    split = {"split_parts": {"train": list(counts), "val": [], "test": []}, "exclude": []}
    (meta / "split.yaml").write_text(json.dumps(split))  # JSON is YAML
    (meta / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")


# ------------------------------------------------------------------------------------------------------------
# tables


def _rows(sample: Sample) -> Iterator[dict[str, Any]]:
    yield {
        "position": -1,
        "modality": "metadata",
        "content_type": "application/json",
        **sample.extra["metadata"],
    }
    for at in range(len(sample.texts)):
        for side, value in (("text", sample.texts[at]), ("image", sample.images[at])):
            if value is None:
                continue
            given = sample.extra[side]
            row = {"position": at, "modality": side, **((given[at] if at < len(given) else None) or {})}
            if isinstance(value, str):
                yield {**row, "content_type": "text/plain", "text_content": value}
            else:
                kind = extension_of(value)
                yield {**row, "content_type": _MIME.get(kind, f"image/{kind}"), "binary_content": value}


def as_table(samples: Sequence[Sample], kinds: dict[str, str]) -> pa.Table:
    rows = [{"sample_id": sample.sample_id, **row} for sample in samples for row in _rows(sample)]
    for row in rows:
        for name, kind in kinds.items():
            if kind == "json" and row.get(name) is not None:
                row[name] = json.dumps(row[name])
    fields = [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("modality", pa.string(), nullable=False),
        pa.field("content_type", pa.string()),
        pa.field("text_content", pa.string()),
        pa.field("binary_content", pa.large_binary()),
        pa.field("source_ref", pa.string()),
        pa.field("materialize_error", pa.string()),
        *(
            pa.field(name, _ARROW[kind], metadata=_JSON if kind == "json" else None)
            for name, kind in kinds.items()
        ),
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def write_parquet(root: Path, partitions: dict[str, list[Sample]]) -> None:
    root.mkdir(parents=True)
    for name, samples in partitions.items():
        pq.write_table(as_table(samples, column_kinds(samples)), root / f"{name}.parquet")


def write_lance(root: Path, partitions: dict[str, list[Sample]]) -> None:
    import lance

    samples = [sample for part in partitions.values() for sample in part]
    root.mkdir(parents=True)
    lance.write_dataset(as_table(samples, column_kinds(samples)), str(root / "items.lance"))


def write_formats(out: Path, partitions: dict[str, list[Sample]]) -> None:
    """``out`` gets webdataset/, parquet/ and lance/."""
    write_webdataset(out / "webdataset", partitions)
    write_parquet(out / "parquet", partitions)
    write_lance(out / "lance", partitions)


def write_reference(
    raw: Path, out: Path, per_image: Sequence[str] = (), per_text: Sequence[str] = ()
) -> None:
    write_formats(out, read_partitions(raw, per_image, per_text))
