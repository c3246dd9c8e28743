"""Command ``mm-assets inspect PATH``."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from mm_assets.cli import raw_layout
from mm_assets.cli.arguments import location
from mm_assets.formats.format_table import TITLES
from mm_assets.interleaved.counted import counted
from mm_assets.terminal import fail

if TYPE_CHECKING:  # commands start faster without pyarrow
    import pyarrow as pa

    from mm_assets.formats.content_columns import ContentColumns
    from mm_assets.formats.partitions import Partition

_COLUMNS = ["sample_id", "position", "modality", "content_type", "text_content", "materialize_error"]
_SAMPLES, _ERRORS = "samples", "errors"  # beside the modalities
_MODALITIES = ("metadata", "text", "image")
_READS_THE_REST = "; convert --on-materialize-error drop_sample reads the rest"
_NAMED = 3  # partitions that would be refused


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "inspect", help="show format, counts, columns and the first sample of a dataset"
    )
    parser.add_argument("path", type=location, help=f"file, folder, glob or URL of {TITLES} data")
    raw_layout.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what a dataset holds; image bytes are not read.

    Partitions that cannot be read are named at the end.
    """
    from mm_assets.formats.error_lines import error_line
    from mm_assets.formats.error_places import located
    from mm_assets.formats.made_shards import location_of
    from mm_assets.formats.registry import detect_format, reader_for
    from mm_assets.formats.tar.scan import TarDamage
    from mm_assets.formats.webdataset.layout import MADE_WHEN_OPENED
    from mm_assets.formats.webdataset.payload import SampleError
    from mm_assets.interleaved.json_values import is_json
    from mm_assets.interleaved.unify import unify_schemas

    source = location_of(options.path)
    with located(source):
        kind = detect_format(source)
        raw_layout.refuse_inapplicable_flags(options, kind, source)
        reader = reader_for(kind, source, **raw_layout.layout_of(options, kind, source))
        partitions = reader.partitions()
    counts: Counter[str] = Counter()
    schemas = []
    first: list[dict[str, Any]] = []
    failures: list[str] = []
    advice = _Advice()
    for partition in partitions:
        found: Counter[str] = Counter()
        notes: dict[str, Any] = {}
        try:
            schema, tables = reader.project(partition, _COLUMNS, notes)
            schemas.append(schema)
            for table in tables:
                found += _counts(table)
                first = first or _first_sample(table)
            advice.add(partition, schema, found, notes)
        except (OSError, ValueError) as error:
            # `inspect` reads as the policy `error` does: what is wrong is to be seen, and named.
            is_of_sample = isinstance(error, SampleError | TarDamage)
            failures.append(error_line(error) + (_READS_THE_REST if is_of_sample else ""))
        counts += found
    if failures and not schemas:
        raise ValueError("; ".join(failures))
    unread = f", of which {len(failures)} cannot be read to the end" if failures else ""
    print(
        f"{options.path if source.startswith(MADE_WHEN_OPENED) else source}: "
        f"{kind}, {counted(len(partitions), 'partition')}{unread}, "
        f"{counted(counts[_SAMPLES], 'sample')}, {counted(sum(counts[name] for name in _MODALITIES), 'row')}"
    )
    print(
        f"  {counts['metadata']} metadata, {counts['text']} text, {counts['image']} image rows; "
        f"{counts[_ERRORS]} with an error"
    )
    print("columns:")
    for field in unify_schemas(schemas) if schemas else []:
        print(f"  {field.name}: {'JSON' if is_json(field) else field.type}")
    if first:
        print(f"first sample: {first[0]['sample_id']}")
        for row in first:
            shown = row["materialize_error"] or row["text_content"] or row["content_type"] or ""
            print(f"  [{row['position']}] {row['modality']}: {shown[:100]}")
    for line in advice.lines():
        print(line)
    for failure in failures:
        fail(failure)
    return 1 if failures or advice.loses_all else 0


def _counts(table: pa.Table) -> Counter[str]:
    """Count samples, errors, and rows by modality."""
    found = Counter(
        {_SAMPLES: len(table.column("sample_id").unique())}
        | {entry["values"]: entry["counts"] for entry in table.column("modality").value_counts().to_pylist()}
    )
    found[_ERRORS] = table.num_rows - table.column("materialize_error").null_count
    return found


def _first_sample(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.slice(0, 200).to_pylist()
    return [row for row in rows if row["sample_id"] == rows[0]["sample_id"]]


class _Advice:
    """What `convert` would say: why it would refuse a partition, and which content is not taken."""

    def __init__(self) -> None:
        from mm_assets.settings import Settings

        self._max_loss = Settings.load().max_loss
        self.refusals: list[str] = []
        self.loses_all = False  # of some partition `convert` would refuse, 100 % would be lost
        self._untaken: list[ContentColumns] = []
        self._errors = 0
        self._left_out: list[str] = []

    def add(
        self, partition: Partition, schema: pa.Schema, found: Counter[str], notes: dict[str, Any]
    ) -> None:
        """Take a partition into account that was read to the end."""
        from mm_assets.accounting.loss_share import LossShare
        from mm_assets.formats.content_columns import untaken_in
        from mm_assets.formats.reports import PartitionReport, left_out_of

        report = PartitionReport(
            partition=partition.name,
            uri=None,
            rows=sum(found[name] for name in _MODALITIES),
            samples=found[_SAMPLES],
            images=found["image"],
            texts=found["text"],
            nbytes=0,
            image_bytes=0,
            schema=schema,
            digest="",
            notes=notes,
        )
        self._untaken.append(untaken_in(report))
        self._errors += found[_ERRORS]
        self._left_out += left_out_of(notes)
        loss = LossShare.of_report(report)
        refusal = loss.refusal(self._max_loss)
        self.loses_all |= refusal is not None and round(loss.share, 2) == 1
        self.refusals += [] if refusal is None else [f"{partition.files[0]}: {refusal}"]

    def lines(self) -> list[str]:
        """Return a line for each of the first refusals, each modality not taken, and members left out."""
        from mm_assets.formats.content_columns import untaken_lines
        from mm_assets.formats.reports import left_out_lines

        more = len(self.refusals) - _NAMED
        ways = "unless --on-materialize-error is warn, drop_row or drop_sample"
        return [
            *([f"convert would refuse the rows with an error, {ways}"] if self._errors else []),
            *(f"convert would refuse {refusal}" for refusal in self.refusals[:_NAMED]),
            *([f"and {more} more"] if more > 0 else []),
            *untaken_lines(self._untaken, len(self._untaken)),
            *left_out_lines(len(self._left_out), self._left_out),
        ]
