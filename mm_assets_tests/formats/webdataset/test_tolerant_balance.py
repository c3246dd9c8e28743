"""Every item is a row or a loss, whatever the tar: good samples, bad ones, duplicates, cuts; and the survey
counts the same.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.model.errors import FAULTS
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.webdataset.tolerant_reading import BAD_TEXTS, read_tolerantly
from mm_assets_tests.interleaved.arrow_values import json_values

IDS = st.sampled_from(["x", "y", "s1", "ü"])
TOKENS = st.sampled_from([None, "s.png", "0.png", "gone.png", "page", "", 5])
GOOD = st.fixed_dictionaries(
    {"texts": st.lists(st.none() | st.text(max_size=3), max_size=3), "images": st.lists(TOKENS, max_size=3)},
    optional={"sample_id": IDS, "n": json_values, "lang": json_values},
)
OWN = st.fixed_dictionaries(
    {
        "_row_extra": st.fixed_dictionaries(
            {}, optional={"text": json_values, "image": json_values, "metadata": json_values}
        )
    },
    optional={
        "sample_id": IDS | json_values,
        "texts": st.lists(st.none() | st.text(max_size=3), max_size=2) | json_values,
        "images": st.lists(TOKENS, max_size=2) | json_values,
        "_row_errors": st.lists(
            st.fixed_dictionaries(
                {
                    "modality": st.sampled_from(["metadata", "text", "image", "video"]),
                    "position": st.integers(-2, 3) | st.sampled_from([2**31 - 1, 2**31, "1"]),
                },
                optional={
                    "materialize_error": st.text(max_size=3) | json_values,
                    "content_type": json_values,
                    "extra": json_values,
                },
            ),
            max_size=3,
        )
        | json_values,
        "_mm_assets": json_values,
        "position": json_values,
        "_source": json_values,
    },
)
JSONS = st.one_of(GOOD, OWN, st.sampled_from([data for data, _, _ in BAD_TEXTS]), json_values).map(
    lambda v: v if isinstance(v, bytes) else json.dumps(v).encode()
)


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(JSONS, max_size=6), st.none() | st.integers(0, 12_000), st.none() | st.integers(1, 300))
def test_items_are_rows_or_losses(jsons: list[bytes], cut: int | None, max_batch_bytes: int | None) -> None:
    """`read_tolerantly` asserts the balance."""
    with tempfile.TemporaryDirectory() as name:
        members: list[tuple[str, Any]] = [(f"s{number}.json", data) for number, data in enumerate(jsons)]
        shard = make_tar(
            Path(name) / "x.tar", [("s.png", b"GIF89a"), *members, ("s1.0.png", b"\x89PNG\r\n\x1a\n")]
        )
        if cut is not None:
            shard.write_bytes(shard.read_bytes()[:cut])
        reading = read_tolerantly(shard, max_batch_bytes=max_batch_bytes, per_text_fields=["lang"])
        assert {loss.kind for loss in reading.losses} <= set(FAULTS)
        assert len(reading.ids) == len(reading.survey.samples)
        if cut is None:
            causes = sum(loss.is_cause for loss in reading.losses)
            assert len(reading.ids) + causes == len(jsons), "each json is a sample or the cause of a loss"
