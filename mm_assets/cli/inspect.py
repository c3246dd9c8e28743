"""Command ``mm-assets inspect PATH``."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from mm_assets.cli import raw_layout
from mm_assets.cli.arguments import location
from mm_assets.formats.format_table import TITLES
from mm_assets.interleaved.counted import counted
from mm_assets.terminal import fail


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
    from mm_assets.formats.webdataset.layout import MADE_WHEN_OPENED
    from mm_assets.interleaved.json_values import is_json
    from mm_assets.interleaved.unify import unify_schemas

    source = location_of(options.path)
    with located(source):
        kind = detect_format(source)
        raw_layout.refuse_inapplicable_flags(options, kind, source)
        reader = reader_for(kind, source, **raw_layout.layout_of(options, kind, source))
        partitions = reader.partitions()
    counts: Counter[str] = Counter()
    samples = errors = 0
    schemas = []
    first: list[dict[str, Any]] = []
    columns = ["sample_id", "position", "modality", "content_type", "text_content", "materialize_error"]
    failures: list[str] = []
    for partition in partitions:
        try:
            schema, tables = reader.project(partition, columns)
            schemas.append(schema)
            for table in tables:
                ids = table.column("sample_id")
                samples += len(ids.unique())
                errors += table.num_rows - table.column("materialize_error").null_count
                counts.update(
                    {e["values"]: e["counts"] for e in table.column("modality").value_counts().to_pylist()}
                )
                if not first and table.num_rows:
                    first = [r for r in table.slice(0, 200).to_pylist() if r["sample_id"] == ids[0].as_py()]
        except (OSError, ValueError) as error:
            failures.append(error_line(error))
    if failures and not schemas:
        raise ValueError("; ".join(failures))
    unread = f", of which {len(failures)} cannot be read to the end" if failures else ""
    print(
        f"{options.path if source.startswith(MADE_WHEN_OPENED) else source}: "
        f"{kind}, {counted(len(partitions), 'partition')}{unread}, "
        f"{counted(samples, 'sample')}, {counted(sum(counts.values()), 'row')}"
    )
    print(
        f"  {counts['metadata']} metadata, {counts['text']} text, {counts['image']} image rows; "
        f"{errors} with an error"
    )
    print("columns:")
    for field in unify_schemas(schemas) if schemas else []:
        print(f"  {field.name}: {'JSON' if is_json(field) else field.type}")
    if first:
        print(f"first sample: {first[0]['sample_id']}")
        for row in first:
            shown = row["materialize_error"] or row["text_content"] or row["content_type"] or ""
            print(f"  [{row['position']}] {row['modality']}: {shown[:100]}")
    for failure in failures:
        fail(failure)
    return 1 if failures else 0
