"""`mm-assets reshard`: what it takes, what it says, and what it refuses in one line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.commands import fine, only_line, run
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.training_set.sets import make_source, tree
from tools.demo import make_shards


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_source(folder / "web", "web", shards=3)
    make_source(folder / "books", "books", samples=8)
    make_shards(folder / "raw", members=2, pdf=1, samples=4)
    fine(run("convert", folder / "raw", folder / "parquet", "--to", "parquet"))
    return folder


def test_several_sources_with_weights_are_proven(made: Path, tmp_path: Path) -> None:
    command = ("reshard", made / "web", made / "books", tmp_path / "set", "--shards", 4, "--prove")
    weights = ("--weights", f"web=0.5,{made / 'books'}=2", "--tokens", "tokens")
    done = fine(run(*command, *weights, "--split", "train=0.8,validation=0.2", "--seed", 7)).splitlines()
    plan = pq.read_table(tmp_path / "set" / "plan.parquet").to_pylist()
    train = [row for row in plan if row["split"] == "train"]
    uses = {name: sum(row["repeats"] for row in train if row["source"] == name) for name in ("web", "books")}
    counts = {name: sum(row["source"] == name for row in train) for name in uses}
    assert abs(uses["web"] - counts["web"] / 2) <= 0.5 and uses["books"] == 2 * counts["books"]
    kept = [row for row in plan if row["repeats"]]
    left_out = len(plan) - len(kept)
    assert done[0].startswith(f"{tmp_path / 'set'}: 4 shards, {len(kept)} samples, ")
    assert f", {sum(uses.values())} uses, " in done[1] and f"left out by their weight: {left_out}" in done[1]
    assert done[2].startswith("  validation: 1 shard, ") and " tokens" in done[2]
    assert done[3].startswith(
        f"  proven equal to the sources: {len(kept)} samples, {left_out} left out by their weight, digest "
    )
    again = fine(run(*command, *weights, "--split", "train=0.8,validation=0.2", "--seed", 7))
    assert "there already, of the same samples: 4 shards" in again


@pytest.mark.parametrize("kind", ["webdataset", "mds", "parquet", "arrow_cache"])
def test_raw_shards_and_parquet_become_a_set(made: Path, tmp_path: Path, kind: str) -> None:
    for source in ("raw", "parquet"):
        target = tmp_path / source
        fine(run("reshard", made / source, target, "--to", kind, "--shards", 2, "--prove"))
        assert fine(run("verify", made / "parquet", target)).splitlines()[-1] == "equal"
    plans = [pq.read_table(tmp_path / name / "plan.parquet") for name in ("raw", "parquet")]
    assert plans[0].column("sample_id") == plans[1].column("sample_id")
    assert set(plans[0].column("source_shard").to_pylist()) == {
        f"{name}.tar" for name in ("web-00000", "web-00001", "pdf-00000")
    }


def test_the_number_of_workers_changes_no_byte(made: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        target = tmp_path / str(workers) / "set"
        fine(run("reshard", made / "raw", made / "web", target, "--shards", 3, "--workers", workers))
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


def test_a_dry_run_writes_nothing(made: Path, tmp_path: Path) -> None:
    command = ("reshard", made / "web", tmp_path / "set", "--split", "train=0.5,test=0.5", "--dry-run")
    assert [line.split(":")[0] for line in fine(run(*command)).splitlines()] == ["  train", "  test"]
    assert not (tmp_path / "set").exists()


def test_a_split_that_got_no_sample_is_told(made: Path, tmp_path: Path) -> None:
    split = ("--split", "train=0.999999,validation=0.000001")
    done = fine(run("reshard", made / "books", tmp_path / "set", *split)).splitlines()
    assert done[-1] == "  validation: no sample fell to it: raise its share, or leave it out"


def test_no_shuffle_keeps_the_order(made: Path, tmp_path: Path) -> None:
    fine(run("reshard", made / "web", tmp_path / "set", "--no-shuffle", "--shard-size", "30KiB"))
    ids = [read("webdataset", folder).column("sample_id") for folder in (made / "web", tmp_path / "set")]
    assert ids[0] == ids[1]
    assert all(tar.stat().st_size < 45 << 10 for tar in (tmp_path / "set").glob("*.tar"))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--weights", "web"), "--weights 'web': write it as SRC=NUMBER, such as books=2"),
        (("--weights", "wep=2"), "weights: there is no source 'wep'; the nearest is web"),
        (
            ("--tokens", "nothing"),
            "nothing is no column of its samples' metadata (url, tokens, quality), and no",
        ),
        (
            ("--split-by", "domain(uri)"),
            "uri is no column of its samples' metadata (url, tokens, quality), and",
        ),
    ],
)
def test_flags_that_do_not_fit(made: Path, tmp_path: Path, flags: tuple[str, ...], reason: str) -> None:
    assert reason in only_line(run("reshard", made / "web", tmp_path / "set", *flags))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("split", ["train=0.9", "train=0.5,train=0.5", "a-b=1", "train=2,x=-1", "train"])
def test_splits_that_are_none(made: Path, tmp_path: Path, split: str) -> None:
    done = run("reshard", made / "web", tmp_path / "set", "--split", split)
    assert done.returncode == 2 and "argument --split: must" in done.stderr


def test_one_id_in_two_sources_is_one_line(made: Path, tmp_path: Path) -> None:
    make_source(tmp_path / "more", "web", shards=1)
    line = only_line(run("reshard", made / "web", tmp_path / "more", tmp_path / "set"))
    assert line.startswith(
        f"{made}/web/web-0.tar and {tmp_path}/more/web-0.tar: duplicate_id: sample id 'web/doc."
    )
    assert line.endswith("ids are unique in a training set: convert a source with --sample-id-prefix shard")


def test_globs_of_one_folder_are_sources_of_their_own(made: Path, tmp_path: Path) -> None:
    globs = [made / "web" / f"*-{part}.tar" for part in ("0", "{1,2}")]
    fine(run("reshard", *globs, tmp_path / "set", "--weights", f"{globs[0]}=1,{globs[1]}=3"))
    plan = pq.read_table(tmp_path / "set" / "plan.parquet").to_pylist()
    assert {(row["source"], row["repeats"]) for row in plan} == {("*-0", 1), ("*-{1,2}", 3)}
    assert {row["source_shard"] for row in plan} == {"web-0.tar", "web-1.tar", "web-2.tar"}


@pytest.mark.parametrize("other", ["web", "web/*-1.tar", "web/../web", "link"])
def test_a_file_that_two_sources_name_is_refused(made: Path, tmp_path: Path, other: str) -> None:
    (made / "link").unlink(missing_ok=True)
    (made / "link").symlink_to(made / "web")
    line = only_line(run("reshard", f"{made}/web/web-?.tar", f"{made}/{other}", tmp_path / "set"))
    assert ": named twice, by " in line and "/web-" in line and f"{made}/web/web-?.tar" in line
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("kind", ["webdataset", "parquet"])
def test_the_bytes_of_splits_are_those_that_were_written(made: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "set"
    split = ("--split", "train=0.5,validation=0.5")
    told = fine(run("reshard", made / "web", target, "--to", kind, *split)).splitlines()
    suffix = {"webdataset": ".tar", "parquet": ".parquet"}[kind]
    written = {
        name: sum(path.stat().st_size for path in target.rglob(f"{name}-*{suffix}"))
        for name in ("train", "validation")
    }
    assert f" {sum(written.values()) / 1e6:.1f} MB, " in told[0]
    for line, (name, nbytes) in zip(told[1:], written.items(), strict=True):
        assert line.startswith(f"  {name}: ") and f", {nbytes / 1e6:.1f} MB, " in line


def test_wrong_usage_is_told_without_all_flags(made: Path) -> None:
    done = run("reshard", made / "web", "out", "--shards", 0)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "usage: mm-assets reshard --help",
            "mm-assets reshard: error: argument --shards: not a number of shards: '0'",
        ],
    )


def test_fewer_shards_than_splits_are_refused(made: Path, tmp_path: Path) -> None:
    flags = ("--shards", 1, "--split", "train=0.5,validation=0.5")
    line = only_line(run("reshard", made / "web", tmp_path / "set", *flags))
    assert line == "1 shard for 2 splits (train, validation): each split has a shard of its own, or more"


def write_tar(path: Path, documents: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, document in enumerate(documents):
            data = json.dumps({"texts": ["a text"], "images": [None], **document}).encode()
            member = tarfile.TarInfo(f"{path.stem}{number}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Two raw sources: of the one, `price` is a number, of the other, a text; only the one has `isbn`."""
    write_tar(tmp_path / "books" / "b0.tar", [{"price": number, "isbn": f"i{number}"} for number in range(4)])
    write_tar(tmp_path / "web" / "w0.tar", [{"price": f"{number} EUR"} for number in range(4)])
    return tmp_path


@pytest.mark.parametrize("kind", ["webdataset", "mds", "parquet", "arrow_cache"])
def test_a_column_that_becomes_json_in_the_set_is_no_difference(books: Path, kind: str) -> None:
    command = ("reshard", books / "books", books / "web", books / "set", "--to", kind)
    assert "  proven equal to the sources: 8 samples" in fine(run(*command, "--shards", 1, "--prove"))


def test_a_set_of_samples_of_several_types_is_what_is_made_of_it(books: Path) -> None:
    fine(run("reshard", books / "books", books / "web", books / "set", "--shards", 1))
    fine(run("convert", books / "set", books / "parquet", "--to", "parquet"))
    for pair in (("set", "parquet"), ("parquet", "set")):
        assert fine(run("verify", *(books / name for name in pair))).endswith("\nequal\n")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ("--split-by", "isbn"),
            "{0}/web/w0.tar: isbn is no column of its samples' metadata (price)",
        ),
        (("--tokens", "price"), "{0}/web/w0.tar: sample 'w00': price is '0 EUR', no number of tokens"),
        (
            ("--sample-id-field", "isbn"),
            "{0}/web: 1 of 1 partition not written: {0}/web/w0.tar: w00.json: field 'isbn' (sample_id_field) "
            "is missing; --sample-id-field is for all sources: convert one with other fields first",
        ),
    ],
)
def test_errors_name_the_files_of_the_user(books: Path, flags: tuple[str, ...], reason: str) -> None:
    line = only_line(run("reshard", books / "books", books / "web", books / "set", *flags))
    assert line == reason.format(books)


def test_one_id_in_two_raw_sources_is_told_by_their_files(books: Path) -> None:
    write_tar(books / "more" / "b0.tar", [{}])
    line = only_line(run("reshard", books / "books", books / "more", books / "set"))
    assert line.startswith(
        f"{books}/books/b0.tar and {books}/more/b0.tar: duplicate_id: sample id 'b00' occurs 2"
    )


def test_a_set_inside_its_source_is_refused(made: Path) -> None:
    line = only_line(run("reshard", made / "web", made / "web" / "set"))
    assert line == f"{made}/web/set: the output cannot be inside the input {made}/web"


@pytest.mark.parametrize("policy", ["error", "drop_row", "drop_sample", "warn"])
def test_what_a_raw_source_loses_is_told(tmp_path: Path, policy: str) -> None:
    raw = tmp_path / "raw" / "a.tar"
    raw.parent.mkdir()
    with tarfile.open(raw, "w") as tar:
        for name in ("g1", "g2", "g3", "g4", "g5"):
            images = ["g2.png"] if name == "g2" else [None]  # a member that is not there
            data = json.dumps({"sample_id": name, "texts": ["a text"], "images": images}).encode()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    flags = () if policy == "error" else ("--on-materialize-error", policy)
    done = run("reshard", raw.parent, tmp_path / "set", "--prove", *flags)
    if policy == "error":
        assert "1 of 1 partition not written" in only_line(done) and "g2.png" in done.stderr
        assert not (tmp_path / "set").exists()
        return
    assert done.returncode == 0
    assert "  proven equal to what was read of the sources: " in done.stdout
    assert f"  {raw.parent}: " in done.stdout
