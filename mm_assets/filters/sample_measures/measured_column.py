"""Column of one measure: its field, which says what filled it, and its values, measured or taken over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from mm_assets.filters.sample_measures.sample_measure import SampleContent, SampleMeasure
from mm_assets.formats.error_lines import error_line

MEASURE = b"mm_assets:measure"
"""Key in a field's metadata: version and fields of the measure, as JSON."""


def measure_field(measure: SampleMeasure) -> pa.Field:
    """Return the field of a measure's column, with the measure's version and fields in its metadata."""
    values = {known.name: getattr(measure, known.name) for known in fields(measure)}
    says = {"version": measure.version} | ({"fields": values} if values else {})
    text = json.dumps(says, sort_keys=True, separators=(",", ":"))
    return pa.field(measure.name, measure.type, metadata={MEASURE: text.encode()})


def known_values(known: pa.Table | None, measure: SampleMeasure) -> list[Any] | None:
    """Return a column of earlier scores if the same measure filled it, in the same version."""
    if known is None or measure.name not in known.column_names:
        return None
    wanted, found = measure_field(measure), known.schema.field(measure.name)
    says = (found.metadata or {}).get(MEASURE)
    if found.type != wanted.type or says != wanted.metadata[MEASURE]:
        return None
    return known.column(measure.name).to_pylist()


def measured_column(
    measure: SampleMeasure,
    samples: Mapping[str, SampleContent],
    known: Sequence[Any] | None,
    rows: Mapping[str, int],
) -> pa.Array:
    """Return the values of a measure for samples, by id.

    Args:
        measure: what is measured.
        samples: what it sees of each sample.
        known: values that were measured before.
        rows: where ``known`` has the value of a sample.

    Raises:
        ValueError: the measure fails, or returns what its type cannot hold.
    """
    values = [
        known[rows[sample_id]]
        if known is not None and sample_id in rows
        else _measured(measure, sample_id, content)
        for sample_id, content in samples.items()
    ]
    try:
        return pa.array(values, measure.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{_named(measure)}: {error_line(error)}") from error


def _measured(measure: SampleMeasure, sample_id: str, content: SampleContent) -> Any:
    try:
        return measure.measure(content)
    except ImportError:
        raise  # a library is missing: no fault of the sample
    except Exception as error:
        raise ValueError(f"sample {sample_id!r}: {_named(measure)}: {error_line(error)}") from error


def _named(measure: SampleMeasure) -> str:
    return f"measure {measure.name!r} of {type(measure).__module__}"
