"""Whatever was done to the Lance table, legal or not: the next run of a shard lands, and the table is exact
again.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets_tests.graph.deployment import FILTERED, Deployment, failed_checks, materialized, write_tar
from mm_assets_tests.quick_instance import quick_instance

TO_TABLE = [*FILTERED, "lance_table"]


def document(sample_id: str, *texts: str) -> tuple[str, bytes]:
    payload = {"sample_id": sample_id, "n": len(texts), "texts": texts, "images": [None] * len(texts)}
    return f"{sample_id}.json", json.dumps(payload).encode()


def compact(dataset: Any) -> None:
    dataset.optimize.compact_files()


def update(dataset: Any) -> None:
    dataset.update({"text_content": "'mine'"}, where="modality = 'text'")


def append(dataset: Any) -> None:
    import lance

    rows = dataset.to_table()
    for sample_id in ("a0", "b1", "theirs"):
        lance.write_dataset(
            rows.slice(0, 1).set_column(0, rows.schema.field(0), pa.array([sample_id])),
            dataset.uri,
            mode="append",
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two shards of three documents, in the table."""
    folder = tmp_path_factory.mktemp("made")
    for shard in ("a", "b"):
        write_tar(folder / "raw" / f"{shard}.tar", dict(document(f"{shard}{i}", "old") for i in range(3)))
    with quick_instance(folder / "home") as instance:
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, {"MM_WORKERS": "1"})
        assert failed_checks(deployment.run(assets=TO_TABLE)) == set()
        yield deployment


@pytest.mark.parametrize(("change", "both"), [(compact, True), (update, False), (append, False)])
def test_changed_shards_land(
    tmp_path: Path, copied: Deployment, change: Callable[[Any], None], both: bool
) -> None:
    import lance

    def table() -> Any:
        return lance.dataset(str(tmp_path / "storage" / "lance" / "items.lance"))

    change(table())
    write_tar(tmp_path / "raw" / "a.tar", dict(document(f"a{i}", "new", "more") for i in range(4)))
    if both:
        write_tar(tmp_path / "raw" / "b.tar", dict(document(f"b{i}", "new") for i in range(2)))
    result = copied.run(assets=TO_TABLE)
    assert result.success
    assert set(materialized(result)["lance_table"]) == {"a", "b"}
    copied.check("lance_table", "zero_loss")  # reads everything: an update is seen by it alone
    assert failed_checks(copied.run(assets=TO_TABLE)) == set()
    assert copied.check("lance_table", "zero_loss").success
    texts = table().to_table(columns=["sample_id", "text_content"], filter="modality = 'text'").to_pylist()
    b = [(f"b{i}", "new") for i in range(2)] if both else [(f"b{i}", "old") for i in range(3)]
    assert sorted((row["sample_id"], row["text_content"]) for row in texts) == [
        *((f"a{i}", text) for i in range(4) for text in ("more", "new")),
        *b,
    ]
    assert table().count_rows() == 4 * 3 + len(b) * 2
