"""The check `zero_loss` alone finds what was done to any output behind our back, and names sample, position and column."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.accounting.mutations import CHANGES
from mm_assets_tests.clients.pictures import picture
from mm_assets_tests.graph.deployment import Deployment, failed_checks, write_tar

FIRST, SECOND = picture(0)[1], picture(3)[1]
OUTPUTS = {
    "curated_parquet": ("parquet", "curated/p.parquet"),
    "filtered_parquet": ("parquet", "filtered/p.parquet"),
    "final_tars": ("webdataset", "webdataset/p.tar"),
    "lance_table": ("lance", "lance/items.lance"),
}
EXPECTED = {
    "byte": "sample 'doc.one', position 3, column 'binary_content'",
    "row": "sample 'doc.one', position 1: the image row is missing",
    "type": "sample 'doc.one', position -1, column 'n': ",
    "swap": "sample 'doc.one', position 1, column 'binary_content'",
    "rename": "sample 'doc.one', position -1, column 'score': ",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two shards through the whole graph; each test takes a copy of the outputs."""
    folder = tmp_path_factory.mktemp("made")
    one = {"sample_id": "doc.one", "n": 5, "score": 0.5, "texts": ["first", None, None, None], "images": [None, "a.png", None, "b.png"]}
    two = {"sample_id": "dir/two", "n": 6, "score": 1.5, "texts": ["other text"], "images": [None]}
    three = {"sample_id": "three", "n": 7, "score": 2.5, "texts": ["t"], "images": [None]}
    documents = {f"{name}.json": json.dumps(payload).encode() for name, payload in (("one", one), ("two", two))}
    write_tar(folder / "raw" / "p.tar", {**documents, "a.png": FIRST, "b.png": SECOND})
    write_tar(folder / "raw" / "q.tar", {"three.json": json.dumps(three).encode()})
    bounds = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("home"))) as instance:
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, {"MM_WORKERS": "1", **bounds})
        result = deployment.run()
        assert result.success
        assert failed_checks(result) == set()
        yield deployment


@pytest.fixture
def copied(made: Deployment, tmp_path: Path) -> Deployment:
    shutil.copytree(made.storage, tmp_path / "storage")
    return Deployment(made.raw, str(tmp_path / "storage"), made.instance, made.environment)


def _verdicts(deployment: Deployment, asset: str) -> dict[str | None, list[str]]:
    """Shard -> problems, as the check launched alone finds them; the total over shards is under None."""
    result = deployment.check(asset, "zero_loss")
    assert result.success
    found = {}
    for evaluation in result.get_asset_check_evaluations():
        problems = evaluation.metadata["problems"].value if evaluation.partition else []
        assert evaluation.passed is (not problems) or evaluation.partition is None
        found[evaluation.partition] = list(problems)
    return found


def test_untouched_outputs_are_proven(copied: Deployment) -> None:
    for asset in OUTPUTS:
        assert _verdicts(copied, asset) == {"p": [], "q": [], None: []}
    proof = json.loads((Path(copied.storage) / "proof" / "proof.json").read_text())
    assert proof["is_equal"] is True
    counted = ("shards", "rows", "samples", "images", "texts")
    assert {name: tuple(entry[n] for n in counted) for name, entry in proof["assets"].items()} == dict.fromkeys(OUTPUTS, (2, 8, 3, 2, 3))
    assert len({entry["digest"] for entry in proof["assets"].values()}) == 1


@pytest.mark.parametrize("asset", OUTPUTS)
@pytest.mark.parametrize("change", EXPECTED)
def test_a_change_is_named(asset: str, change: str, copied: Deployment) -> None:
    kind, path = OUTPUTS[asset]
    target = Path(copied.storage, path)
    _keeping_times(target, lambda: CHANGES[kind](target, change))
    verdicts = _verdicts(copied, asset)
    assert any(EXPECTED[change] in line for line in verdicts["p"]), verdicts
    proof = json.loads((Path(copied.storage) / "proof" / "proof.json").read_text())
    assert proof["is_equal"] is False
    assert proof["shards"]["p"][asset]["problems"] == verdicts["p"]
    for other in OUTPUTS:
        assert other == asset or proof["shards"]["p"][other]["is_equal"]


def test_a_row_that_someone_appended_belongs_to_no_shard(copied: Deployment) -> None:
    import lance

    dataset = lance.dataset(str(Path(copied.storage, "lance", "items.lance")))
    lance.write_dataset(dataset.to_table().slice(0, 1), dataset.uri, mode="append")
    assert any("1 rows belong to no shard" in line for line in _verdicts(copied, "lance_table")["q"])


def test_a_missing_file_is_a_problem(copied: Deployment) -> None:
    Path(copied.storage, "webdataset", "p.tar").unlink()
    (line,) = _verdicts(copied, "final_tars")["p"]
    assert "p.tar" in line and "cannot be read" in line


def _keeping_times(path: Path, change: Callable[[], None]) -> None:
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _flip(path: Path, part: bytes) -> None:
    data = path.read_bytes()
    at = data.index(part) + len(part) // 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize("asset", OUTPUTS)
def test_the_next_run_mends_what_a_proof_found(asset: str, copied: Deployment) -> None:
    """One byte flipped on the disk: neither size nor time tells, so only the proof does; and then it is made again."""
    target = Path(copied.storage, OUTPUTS[asset][1])
    files = [path for path in (target.rglob("*.lance") if target.is_dir() else [target]) if SECOND in path.read_bytes()]
    _keeping_times(files[0], lambda: _flip(files[0], SECOND))
    assert _verdicts(copied, asset)["p"]
    result = copied.run()
    assert result.success
    assert failed_checks(result) == set()
    made = {e.partition: bool(e.metadata.get("unchanged")) for e in _materializations(result, asset)}
    assert made == {"p": False, "q": True}
    assert _verdicts(copied, asset) == {"p": [], "q": [], None: []}


def test_rows_deleted_from_the_table_come_back_with_the_next_run(copied: Deployment) -> None:
    import lance

    lance.dataset(str(Path(copied.storage, "lance", "items.lance"))).delete("sample_id = 'doc.one' AND modality = 'image'")
    result = copied.run()
    assert failed_checks(result) == set()
    assert lance.dataset(str(Path(copied.storage, "lance", "items.lance"))).count_rows() == 8
    assert _verdicts(copied, "lance_table") == {"p": [], "q": [], None: []}


def test_a_lost_ledger_file_is_written_again(copied: Deployment) -> None:
    entry = Path(copied.storage, "ledger", "balance", "final_tars", "p.parquet")
    data = entry.read_bytes()
    entry.unlink()
    assert copied.run().success
    assert entry.read_bytes() == data


def _materializations(result: dg.ExecuteInProcessResult, asset: str) -> list[dg.AssetMaterialization]:
    events = [e.step_materialization_data.materialization for e in result.get_asset_materialization_events()]
    return [made for made in events if made.asset_key.to_user_string() == asset]
