"""Shards of PDFs as the graph reads them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats.pdf import Limits
from mm_assets.formats.pdf.shard import PdfAddress, write_shard
from mm_assets.model.losses import Loss
from mm_assets_tests.formats.datasets import raw_streams

Row = dict[str, Any]


def read(locations: str) -> tuple[dict[str, list[Row]], dict[str, list[Loss]]]:
    """Return rows and losses of all shards, by partition."""
    rows: dict[str, list[Row]] = {}
    losses: dict[str, list[Loss]] = {}
    for key, stream in raw_streams(locations):
        rows[key] = [row for batch in stream for row in pa.table(batch.data).to_pylist()]
        unreferenced = [
            loss for notes in stream.notes.values() for loss in notes.get("unreferenced_losses", ())
        ]
        losses[key] = [*stream.losses, *unreferenced]
    return rows, losses


def read_one(folder: Path, data: bytes, blocks: bytes | None = None) -> list[Row]:
    """Return the rows of one PDF, which nothing is lost of."""
    rows, losses = read(
        files_in(folder, {"doc.pdf": data} | ({} if blocks is None else {"doc.blocks.json": blocks}))
    )
    ((name, found),) = rows.items()
    assert losses == {name: []}
    return found


def files_in(folder: Path, files: Mapping[str, bytes]) -> str:
    """Write files, and return what ``MM_RAW_SHARDS`` says of them."""
    for name, data in files.items():
        file = folder / "docs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return f"pdf={folder / 'docs'}"


def members(folder: Path, files: Mapping[str, bytes], limits: Limits | None = None) -> dict[str, bytes]:
    """Return the members of the tar that is made of some PDFs."""
    location = files_in(folder, files).removeprefix("pdf=")
    ((_, sources),) = PdfAddress((location,)).names().items()
    write_shard(sources, folder / "shard.tar", limits)
    with tarfile.open(folder / "shard.tar") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def without_refused(found: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the members of samples that are read, and by name what is said of the others."""
    good, reasons = dict(found), {}
    for name, data in found.items():
        if name.endswith(".json") and (refused := json.loads(data)["_mm_assets"].get("refused")):
            kind, message, _ = refused
            assert kind == "unreadable_pdf"
            reasons[name.removesuffix(".json")] = message
            del good[name]
    return good, reasons


def items(rows: list[Row]) -> list[Any]:
    """Return the texts, and the bytes of images, in order."""
    return [
        row["text_content"] if row["modality"] == "text" else row["binary_content"]
        for row in rows
        if row["modality"] != "metadata"
    ]
