"""The check `zero_loss` alone finds what was done to any output behind our back, and names sample, position
and column.
"""

import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.proof import ProofStore
from mm_assets.definitions import build_definitions
from mm_assets.graph.proof import Prover
from mm_assets_tests.accounting.mutations import CHANGES
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import Deployment, failed_checks
from mm_assets_tests.graph.published import account

FIRST, SECOND = picture(0)[1], picture(3)[1]
OUTPUTS = {
    "curated_parquet": ("parquet", "curated/p.parquet"),
    "filtered_parquet": ("parquet", "filtered/p.parquet"),
    "final_tars": ("webdataset", "webdataset/p.tar"),
    "lance_table": ("lance", "lance/items.lance"),
    "arrow_cache": ("arrow_cache", "arrow_cache/p"),
}
TARS, TABLE = ["final_tars"], ["lance_table"]  # a run of one takes a third of one of all
EXPECTED = {
    "byte": "sample 'doc.one', position 3, column 'binary_content'",
    "row": "sample 'doc.one', position 1: the image row is missing",
    "type": "sample 'doc.one', position -1, column 'n': ",
    "swap": "sample 'doc.one', position 1, column 'binary_content'",
    "rename": "sample 'doc.one', position -1, column 'score': ",
}


def _verdicts(deployment: Deployment, asset: str) -> dict[str | None, list[str]]:
    """Shard -> problems, as the check launched alone finds them; the total over shards is under None."""
    result = deployment.check(asset, "zero_loss")
    found = {}
    for evaluation in result.get_asset_check_evaluations():
        problems = evaluation.metadata["problems"].value if evaluation.partition else []
        assert evaluation.passed is (not problems) or evaluation.partition is None
        found[evaluation.partition] = list(problems)
    assert result.success is not any(found.values())
    return found


def test_untouched_outputs_are_proven(copied: Deployment) -> None:
    for asset in OUTPUTS:
        assert _verdicts(copied, asset) == {"p": [], "q": [], None: []}
    proof = json.loads((Path(copied.storage) / "proof" / "proof.json").read_text())
    assert proof["is_equal"] is True
    counted = ("shards", "rows", "samples", "images", "texts")
    assert {
        name: tuple(entry[n] for n in counted) for name, entry in proof["assets"].items()
    } == dict.fromkeys(OUTPUTS, (2, 8, 3, 2, 3))
    assert len({entry["digest"] for entry in proof["assets"].values()}) == 1


@pytest.mark.parametrize(("asset", "change"), list(zip(OUTPUTS, EXPECTED, strict=True)))
def test_a_change_is_named(asset: str, change: str, copied: Deployment) -> None:
    """Each change in some output; `cli/test_verify.py` has each in every format."""
    kind, path = OUTPUTS[asset]
    target = Path(copied.storage, path)
    _keeping_times(target, lambda: CHANGES[kind](target, change))
    verdicts = _verdicts(copied, asset)
    assert any(EXPECTED[change] in line for line in verdicts["p"]), verdicts
    proof = json.loads((Path(copied.storage) / "proof" / "proof.json").read_text())
    assert proof["is_equal"] is False
    found = {shard: lines for shard, lines in verdicts.items() if shard is not None and lines}
    problems = {other: found if other == asset else {} for other in OUTPUTS}
    assert {other: entry["problems"] for other, entry in proof["assets"].items()} == problems


def test_the_job_prove_fails_with_a_line_for_each_damaged_shard(
    copied: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    """All it found is stored before, of every shard and output."""
    for shard in ("p", "q"):
        os.truncate(Path(copied.storage, "webdataset", f"{shard}.tar"), 600)
    with copied._configured():
        result = (
            build_definitions()
            .resolve_job_def("prove")
            .execute_in_process(instance=copied.instance, raise_on_error=False)
        )
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert failure.step_failure_data.error is not None
    assert "2 shards of final_tars are not as they were written" in failure.step_failure_data.error.message
    lines = [line for line in capfd.readouterr().err.splitlines() if "final_tars, shard " in line]
    assert [re.search("shard (.): .*cannot be read", line)[1] for line in lines] == ["p", "q"]  # type: ignore[index]
    evaluations = result.get_asset_check_evaluations()
    assert len(evaluations) == len(OUTPUTS) * 3
    assert {(e.asset_key.to_user_string(), e.partition) for e in evaluations if not e.passed} == {
        ("final_tars", s) for s in (*"pq", None)
    }


def test_a_missing_file_is_a_problem(copied: Deployment) -> None:
    Path(copied.storage, "webdataset", "p.tar").unlink()
    (line,) = _verdicts(copied, "final_tars")["p"]
    assert "p.tar" in line and "cannot be read" in line


def _keeping_times(path: Path, change: Callable[[], None]) -> None:
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _flip(path: Path, part: bytes) -> None:
    data = path.read_bytes()
    at = data.index(part) + len(part) // 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


INDEX = {
    "p.tar.idx": (b"\x00\x04\x00\x00", "p.tar.idx: not where the samples of the tar begin and end"),
    "index.json": (b'"nsamples": 9', 'index.json: has {"url": "p.tar", "nsamples": 9'),
    ".nv-meta/.info.json": (b'"p.tar": 9', ".nv-meta/.info.json: has 9 of p.tar, not 2"),
    ".nv-meta/split.yaml": (b'"x.tar"', ".nv-meta/split.yaml: has null of p.tar, not true"),
    "README.md": (b"dtype: sound", None),
}


@pytest.mark.parametrize(
    ("names", "is_proven"),
    [(("p.tar.idx",), True), (tuple(INDEX)[1:], True), (tuple(INDEX), False)],
    ids=["of a tar, proven", "of the folder, proven", "of both"],
)
def test_index_files_that_someone_overwrote(
    names: tuple[str, ...], is_proven: bool, copied: Deployment
) -> None:
    """Size and time tell nothing. The next run writes them anew, and makes no tar; the check alone names what
    clients would go wrong by, and a tar whose own index leads elsewhere is made again then: the tar may be
    what has changed."""
    paths = {name: Path(copied.storage, "webdataset", name) for name in names}
    sound = {name: path.read_bytes() for name, path in paths.items()}
    for name, path in paths.items():
        _keeping_times(path, partial(_write, path, _overwritten(name, sound[name])))
        assert path.read_bytes() != sound[name]
    if is_proven:
        problems = _verdicts(copied, "final_tars")["p"]
        messages = [message for message in (INDEX[name][1] for name in names) if message is not None]
        assert len(problems) == len(messages)
        assert all(any(message in problem for problem in problems) for message in messages)
    result = copied.run(assets=TARS)
    assert result.success and failed_checks(result) == set()
    assert {name: path.read_bytes() for name, path in paths.items()} == sound
    unchanged = {
        e.partition: bool(e.metadata.get("unchanged")) for e in _materializations(result, "final_tars")
    }
    assert unchanged == {"p": "p.tar.idx" not in names or not is_proven, "q": True}
    assert _verdicts(copied, "final_tars") == {"p": [], "q": [], None: []}


def _overwritten(name: str, sound: bytes) -> bytes:
    bad, _ = INDEX[name]
    known = {"p.tar.idx": sound[8:], "index.json": b'"nsamples": 2', "README.md": b"dtype: image"}
    at = sound.index(known.get(name, b'"p.tar"'))
    return sound[:at] + bad + sound[at + len(bad) :]


@pytest.mark.parametrize(
    "lost",
    [
        (".mm_assets",),
        (".mm_assets/p.tar.json",),
        ("p.tar.idx", "index.json"),
        (".mm_assets/p.tar.json", "p.tar.idx", "index.json"),
    ],
)
def test_files_beside_the_tars_that_are_lost(lost: tuple[str, ...], copied: Deployment) -> None:
    folder = Path(copied.storage, "webdataset")
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in lost:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    assert copied.run(assets=TARS).success
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


TAR_CHANGES = {
    "a moved member": (
        '"doc%2Eone.1.png",null',
        'null,"doc%2Eone.1.png"',
        "position 1: 'image_members' has None, where 'images' has '1.png'",
    ),
    "another member": ('"doc%2Eone.3.', '"doc%2Eone.7.', "position 3: 'image_members' has 'doc%2Eone.7."),
    "no members": ('"image_members":', '"Image_members":', "field 'Image_members' is not of the layout"),
}


def test_a_json_that_clients_would_be_led_astray_by(copied: Deployment) -> None:
    """The rows are the same; sample and position are named, and the next run makes the tar again."""
    tar = Path(copied.storage, "webdataset", "p.tar")
    sound = tar.read_bytes()
    for old, new, message in TAR_CHANGES.values():
        assert old.encode() in sound and len(old) == len(new)
        changed = sound.replace(old.encode(), new.encode(), 1)
        _keeping_times(tar, partial(_write, tar, changed))
        (problem,) = _verdicts(copied, "final_tars")["p"]
        assert "sample 'doc.one'" in problem and message in problem
    assert copied.run(assets=TARS).success
    assert tar.read_bytes() == sound


def test_a_tar_whose_samples_changed_places(copied: Deployment) -> None:
    """The rows are the same, and so is the size: only the index no longer leads to them."""
    tar = Path(copied.storage, "webdataset", "p.tar")
    with tarfile.open(tar) as file:
        second = next(member.offset for member in file if member.name.startswith("dir%2Ftwo"))
    data = tar.read_bytes()
    _keeping_times(tar, lambda: _write(tar, data[second:-1024] + data[:second] + data[-1024:]))
    assert _verdicts(copied, "final_tars")["p"] == [
        "webdataset/p.tar.idx: not where the samples of the tar begin and end"
    ]
    assert copied.run(assets=TARS).success
    assert tar.read_bytes() == data


@pytest.mark.parametrize("asset", OUTPUTS)
def test_the_next_run_mends_what_a_proof_found(asset: str, copied: Deployment) -> None:
    """One byte flipped on the disk: neither size nor time tells, so only the proof does; and then it is made
    again.
    """
    target = Path(copied.storage, OUTPUTS[asset][1])
    files = [
        path
        for path in (target.rglob("*.[la]*") if target.is_dir() else [target])
        if SECOND in path.read_bytes()
    ]
    _keeping_times(files[0], lambda: _flip(files[0], SECOND))
    assert _verdicts(copied, asset)["p"]
    result = copied.run(assets=[asset])
    assert result.success
    assert failed_checks(result) == set()
    made = {e.partition: bool(e.metadata.get("unchanged")) for e in _materializations(result, asset)}
    assert made == {"p": False, "q": True}
    assert _verdicts(copied, asset) == {"p": [], "q": [], None: []}


def _table(deployment: Deployment) -> Any:
    import lance

    return lance.dataset(str(Path(deployment.storage, "lance", "items.lance")))


def _append(dataset: Any, sample_id: str) -> None:
    """One row more, of this sample."""
    import lance

    row = dataset.to_table().slice(0, 1)
    row = row.set_column(0, row.schema.field(0), pa.array([sample_id]))
    lance.write_dataset(row, dataset.uri, mode="append")


def test_rows_deleted_from_the_table_come_back_with_the_next_run(copied: Deployment) -> None:
    _table(copied).delete("sample_id = 'doc.one' AND modality = 'image'")
    result = copied.run(assets=TABLE)
    assert failed_checks(result) == set()
    assert _table(copied).count_rows() == 8
    assert _verdicts(copied, "lance_table") == {"p": [], "q": [], None: []}


@pytest.mark.parametrize(
    ("sample_id", "shard", "alone"),
    [
        ("doc.one", "p", True),
        ("three", "q", False),
        ("someone else's", "p", True),
        ("someone else's", "p", False),
    ],
)
def test_a_row_that_no_shard_has_written_is_named_and_goes(
    copied: Deployment, sample_id: str, shard: str, alone: bool
) -> None:
    """Found by a run that has nothing else to do as well as by the check alone; removed by the run after
    that.
    """
    _append(_table(copied), sample_id)
    appended = _table(copied).version
    if alone:
        verdicts = _verdicts(copied, "lance_table")
        assert verdicts[shard][-2:] == [
            "lance/items.lance: 1 row belongs to no shard",
            f"sample {sample_id!r}: 1 row that no shard has written",
        ]
        assert verdicts["q" if shard == "p" else "p"] == []
    else:
        result = copied.run(assets=TABLE)
        assert failed_checks(result) == {
            ("lance_table", "zero_loss", shard),
            ("lance_table", "zero_loss", None),
        }
        assert all(made.metadata["unchanged"].value for made in _materializations(result, "lance_table"))
    assert json.loads((Path(copied.storage) / "proof" / "proof.json").read_text())["is_equal"] is False
    assert _table(copied).count_rows() == 9
    result = copied.run(assets=TABLE)
    assert failed_checks(result) == set()
    assert {
        e.partition: bool(e.metadata.get("unchanged")) for e in _materializations(result, "lance_table")
    } == {
        shard: False,
        ("q" if shard == "p" else "p"): True,
    }
    dataset = _table(copied)
    assert dataset.count_rows() == 8
    assert dataset.checkout_version(appended).count_rows() == 9
    assert _verdicts(copied, "lance_table") == {"p": [], "q": [], None: []}


def test_a_run_finds_columns_that_are_not_a_shards(copied: Deployment) -> None:
    dataset = _table(copied)
    dataset.add_columns(pa.field("cc", pa.string()))
    assert (
        failed_checks(copied.run(assets=TABLE)) == set()
    )  # without values there is nothing that anybody could miss
    dataset = _table(copied)
    dataset.update({"cc": "'x'"}, where="sample_id = 'three'")
    result = copied.run(assets=TABLE)
    assert failed_checks(result) == {("lance_table", "zero_loss", "q"), ("lance_table", "zero_loss", None)}
    assert "column 'cc'" in _verdicts(copied, "lance_table")["q"][0]
    assert failed_checks(copied.run(assets=TABLE)) == set()
    assert _table(copied).to_table(columns=["cc"])["cc"].null_count == 8


def test_a_run_finds_columns_that_are_gone(copied: Deployment) -> None:
    _table(copied).drop_columns(["score"])
    result = copied.run(assets=TABLE)
    assert failed_checks(result) == {("lance_table", "zero_loss", shard) for shard in ("p", "q", None)}
    assert any("column 'score'" in line for line in _verdicts(copied, "lance_table")["p"])
    assert failed_checks(copied.run(assets=TABLE)) == set()
    assert _table(copied).count_rows("score IS NOT NULL") == 3


def test_a_table_that_nobody_can_open_fails_every_shard(copied: Deployment) -> None:
    for manifest in Path(copied.storage, "lance", "items.lance", "_versions").iterdir():
        manifest.write_bytes(b"junk")
    verdicts = _verdicts(copied, "lance_table")
    assert all("cannot be read" in verdicts[shard][0] for shard in ("p", "q"))


def test_a_lost_account_is_written_again(copied: Deployment) -> None:
    path = account(copied.storage, "final_tars", "p")
    rows = pq.read_table(path)
    path.unlink()
    assert copied.run(assets=TARS).success
    assert pq.read_table(path).equals(rows)


def test_a_proof_that_is_interrupted_keeps_what_it_has_found(
    copied: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(Path(copied.storage, "proof"))
    answers = Prover._answers

    def stopped(self: Prover, jobs: Any, is_table: bool) -> Iterator[tuple[Any, Any]]:
        yield next(answers(self, jobs, is_table))
        raise RuntimeError("stopped")

    monkeypatch.setattr(Prover, "_answers", stopped)
    assert not copied.check("final_tars", "zero_loss").success
    assert len(ProofStore(copied.storage).partitions("final_tars")) == 1


def _materializations(result: dg.ExecuteInProcessResult, asset: str) -> list[dg.AssetMaterialization]:
    events = [e.step_materialization_data.materialization for e in result.get_asset_materialization_events()]
    return [made for made in events if made.asset_key.to_user_string() == asset]
