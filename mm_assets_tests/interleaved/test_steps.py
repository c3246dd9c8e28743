from __future__ import annotations

from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.digest import ContentDigest
from mm_assets.model.losses import Loss
from mm_assets.model.samples import BatchStream, StepResult
from mm_assets_tests.formats.datasets import item, table_of


class Drop:
    """Drops the first row and says so."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        first = batch.data.slice(0, 1).to_pylist()[0]
        gone = Loss(first["sample_id"], first["position"], first["modality"], "filtered", self.name, "first")
        return StepResult(batch.with_data(batch.data.slice(1)), (gone,), batch.data.slice(0, 1))


def test_steps_run_in_order_and_everything_they_drop_is_collected() -> None:
    batch = InterleavedBatch(table_of([item("a"), item("a", 0), item("a", 1)]), ("f",))
    source = BatchStream("p", batch.data.schema, lambda: [batch], ("f",))
    source.notes["f"] = {"n": 1}
    stream = source.through([Drop("x")]).through([Drop("y")])
    assert [b.num_rows for b in stream] == [1]
    assert [(d.kind, d.position) for d in stream.losses] == [("x", -1), ("y", 0)]
    expected = ContentDigest()
    expected.observe(batch.data.slice(0, 2))
    assert stream.removed.hexdigest() == expected.hexdigest()
    assert (stream.partition, stream.files, stream.notes) == ("p", ("f",), {"f": {"n": 1}})


def test_no_steps_is_the_same_stream() -> None:
    stream = BatchStream("p", table_of([]).schema, list)
    assert stream.through([]) is stream
