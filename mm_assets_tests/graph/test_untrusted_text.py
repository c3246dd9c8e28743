"""Text of the data in events: the UI renders descriptions and Markdown, so it has a place in neither."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mm_assets.automation.sensors import report_event
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import Deployment, write_tar

MARK = "hostile.test"
IMAGE = f"![x](http://{MARK}/a.png)"
NAME = f"![x](http:&#47;&#47;{MARK}&#47;a.png)"


def markdown_of(event: Any) -> Iterator[str]:
    """What the UI renders as Markdown of an event."""
    yield event.description or ""
    for value in event.metadata.values():
        if isinstance(value, dg.MarkdownMetadataValue):
            yield value.md_str or ""
        if isinstance(value, dg.TableSchemaMetadataValue):
            yield from (column.description or "" for column in value.schema.columns)


@pytest.mark.parametrize("policy", ["error", "drop_sample"])
def test_nothing_that_the_ui_renders_has_text_of_the_data(
    deploy: Callable[..., Deployment], tmp_path: Path, policy: str
) -> None:
    good = {"sample_id": IMAGE, IMAGE: IMAGE, "texts": [None, "t"], "images": [f"{NAME}.png", None]}
    bad = {"sample_id": f"{IMAGE}2", "texts": [None], "images": [f"{IMAGE}.png"]}
    members = {f"{NAME}.json": json.dumps(good).encode(), f"{NAME}.png": picture(0)[1]}
    write_tar(tmp_path / "raw" / f"{NAME}.tar", members | {"2.json": json.dumps(bad).encode()})
    write_tar(tmp_path / "raw" / "cut.tar", {f"{NAME}.json": b"{"})
    deployment = deploy(MM_ON_MATERIALIZE_ERROR=policy, MM_MIN_SHARPNESS="1000000")
    result = deployment.run()
    events: list[Any] = [report_event(deployment.instance, deployment.storage)]
    for entry in deployment.instance.all_logs(result.run_id):
        if (event := entry.dagster_event) is None:
            continue
        if event.is_asset_observation:
            events.append(event.asset_observation_data.asset_observation)
        elif event.is_step_materialization:
            events.append(event.step_materialization_data.materialization)
        elif event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            events.append(event.asset_check_evaluation_data)
    seen = [event for event in events if event is not None]
    assert any(MARK in repr(event) for event in seen), "the data do reach events"
    assert [text for event in seen for text in markdown_of(event) if MARK in text] == []
    failed = {e.partition for e in seen if "error" in e.metadata and MARK in str(e.metadata["error"].value)}
    assert failed == ({NAME, "cut"} if policy == "error" else {"cut"}), "the reason is there, as text"
