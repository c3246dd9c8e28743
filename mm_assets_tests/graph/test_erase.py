"""``mm-assets erase``: what is named leaves everything and stays out; a certificate says so."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from PIL import Image

from mm_assets.accounting.erasures import DenyList, ErasureStore
from mm_assets.definitions import build_definitions
from mm_assets.filters.known_hashes import DEFAULT_RADIUS
from mm_assets.storage.stamps import sole_writer
from mm_assets.versions.erasure_plan import NotErasedError, entries_in
from mm_assets_tests.cli import commands
from mm_assets_tests.filters.test_contamination import jpeg
from mm_assets_tests.formats.raw_tars import make_tar, tar_members
from mm_assets_tests.graph.erased_world import (
    A1,
    A2,
    B1,
    B2,
    BAD,
    C1,
    World,
    files_of_shard,
    members_of,
    needles_of,
    small_world,
    url_of,
)


def test_a_sample_leaves_everything_and_nothing_else_does(world: World) -> None:
    everywhere = (world.storage, world.home)
    assert len(world.with_any(needles_of(A1), *everywhere)) > 10
    others = {name: files_of_shard(world, name) for name in "bc"}
    told = world.ok("erase", "--sample-id", A1, "--drop-tags")
    assert world.with_any(needles_of(A1), *everywhere) == []
    assert world.samples() == world.samples("filtered") == {A2, B1, B2, C1}
    assert {name: files_of_shard(world, name) for name in "bc"} == others
    assert "rebuilt: a\n" in told and "tag v1: dropped\n" in told
    assert told.splitlines()[-1].startswith("erased: 1 sample in 1 shard; no match is left; certificate: ")
    assert A1.encode() in (world.raw / "a.tar").read_bytes()
    certificate = world.certificate()
    assert certificate["partitions"] == {"a": 5} and certificate["finished"]
    assert certificate["rewritten"]["shards"] == ["a"]  # type: ignore[index]
    scan = certificate["scan"]
    assert isinstance(scan, dict) and scan["occurrences"] == [] and scan["files"] > 50
    assert any("a.tar may still have it" in line for line in scan["out_of_scope"])
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards is in 5 outputs")
    assert "due: 0 shards" in world.ok("status")
    listed = world.ok("erase", "--list")
    assert listed.startswith(f"erasure {certificate['id']}: 1 sample_id; finished ") and A1 not in listed
    assert world.ok("run", "--missing", "--failed", "--changed") == "nothing to do\n"
    world.ok("tag", "v2")
    assert "no difference" in world.ok("diff", "v2")
    assert "\n  a: erased before\n" in world.ok("erase", "--sample-id", A1, "--dry-run")


def test_it_stays_out_when_its_raw_shard_comes_again(world: World) -> None:
    world.ok("erase", "--sample-id", A1, "--drop-tags")
    make_tar(world.raw / "a.tar", members_of(A2, A1, "new-sample-of-a").items())
    make_tar(world.raw / "d.tar", members_of(A1, "new-sample-of-d").items())
    world.command("run")
    assert world.samples() == {A2, B1, B2, C1, "new-sample-of-a", "new-sample-of-d"}
    assert world.with_any(needles_of(A1), world.storage, world.home) == []


def test_several_at_once_leave_the_raw_tars_too(world: World) -> None:
    """By URL; one that is in quarantine; one in a packed tar."""
    before = {name: tar_members(world.raw / name) for name in ("a.tar", "b.tar.gz", "c.tar")}
    gone = (BAD, B2, C1)
    needles = [needle for sample in gone for needle in needles_of(sample)]
    assert any(name.startswith("quarantine/") for name in world.with_any(needles_of(BAD), world.storage))
    asked = ["--url", url_of(C1), "--sample-id", BAD, "--sample-id", B2]
    told = world.ok("erase", *asked, "--drop-tags", "--raw")
    for name, members in before.items():
        left = {member: data for member, data in members.items() if not member.startswith(gone)}
        assert tar_members(world.raw / name) == left != members
        assert f"raw shard {world.raw / name}: " in told
    data = gzip.decompress((world.raw / "b.tar.gz").read_bytes())
    assert not any(needle in data for needle in needles)
    assert world.with_any(needles, world.storage, world.home, world.raw) == []
    assert world.samples() == {A1, A2, B1}
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")
    assert "due: 0 shards" in world.ok("status")


def test_the_raw_tar_may_follow_later(world: World) -> None:
    world.ok("erase", "--sample-id", A1, "--drop-tags")
    world.ok("erase", "--sample-id", A1, "--raw")
    assert world.with_any(needles_of(A1), world.storage, world.home, world.raw) == []
    assert world.samples() == {A2, B1, B2, C1}


@pytest.mark.parametrize("by", ["url", "sha256"])
def test_a_raw_tar_that_follows_later_is_searched_by_what_was_asked_for(tmp_path: Path, by: str) -> None:
    """No output knows any more which sample that was."""
    world = small_world(tmp_path, a=members_of(A1, A2))
    asked = ["--url", url_of(A1)]
    if by == "sha256":
        asked = ["--sha256", hashlib.sha256(members_of(A1)[f"{A1}.0.png"]).hexdigest()]
    world.ok("erase", *asked)
    if by == "sha256":
        assert "only items of it are erased, and --raw takes" in world.refused("erase", *asked, "--raw")
        return
    told = world.ok("erase", *asked, "--raw")
    assert f"raw shard {world.raw / 'a.tar'}: " in told and " bytes removed" in told
    assert list(tar_members(world.raw / "a.tar")) == list(members_of(A2))


def test_a_dry_run_changes_nothing_and_says_where_it_is(world: World) -> None:
    before = world.files(world.raw, world.storage)
    told = world.ok("erase", "--sample-id", A1, "--dry-run")
    assert world.files(world.raw, world.storage) == before
    assert f"a: {A1}: the whole sample; raw: 4 members of a.tar\n" in told
    places = {line.strip().partition(":")[0] for line in told.splitlines() if line.startswith("  ")}
    assert {
        "curated",
        "filtered",
        "webdataset",
        "ledger/accounts",
        "versions/samples",
    } <= places
    assert "dropped with --drop-tags: v1\n" in told
    assert world.ok("erase", "--sample-id", "of-nobody-at-all", "--dry-run").startswith(
        "found nowhere: erase would only block it"
    )


def test_what_nobody_can_look_for_is_said(world: World) -> None:
    told = world.ok("erase", "--sha256", "0" * 64, "--pdq", f"{'f0' * 32}:0")
    assert "bytes: nothing was searched for\n" in told
    assert "not searched for: 1 (sha256, of no image here)\n" in told
    assert "not searched for: 1 (pdq, of no image here)\n" in told


def test_what_is_nowhere_is_refused_from_then_on(world: World) -> None:
    store = ErasureStore(str(world.storage))
    store.write_work("20260101T000000Z-00000000", b"of one that was killed before it began: to-come-tomorrow")
    told = world.ok("erase", "--sample-id", "to-come-tomorrow", "--sample-id", f"{A1}0")
    last = told.splitlines()[-1]
    assert last == f"found nowhere: kept out from now on; the nearest id is {A1!r}"
    assert "nothing found" not in told
    assert [path.suffix for path in Path(store.folder).iterdir()] == [".json"]
    make_tar(world.raw / "d.tar", members_of("to-come-tomorrow", "new-sample").items())
    world.command("run")
    assert world.samples() == {A1, A2, B1, B2, C1, "new-sample"}


def test_by_the_bytes_of_an_image(world: World) -> None:
    picture = members_of(A1)[f"{A1}.0.png"]
    world.ok("erase", "--sha256", hashlib.sha256(picture).hexdigest(), "--drop-tags")
    pieces = [picture[at : at + 48] for at in (300, 1100, 1800)]
    assert world.with_any(pieces, world.storage, world.home) == []
    assert world.samples() == {A2, B1, B2, C1}  # the policy drops samples that lack an image
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")
    line = world.refused(
        "erase", "--sha256", hashlib.sha256(members_of(A2)[f"{A2}.0.png"]).hexdigest(), "--raw"
    )
    assert "only items of it are erased, and --raw takes whole samples out" in line


def test_by_an_image_in_a_file(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its bytes, and those of a copy of half the size; with hardly any detail, or no extra, the first."""
    photograph, small, flat = jpeg(4, 1024), io.BytesIO(), io.BytesIO()
    with Image.open(io.BytesIO(photograph)) as picture:
        picture.resize((512, 512)).save(small, "WEBP", quality=60)
    Image.new("RGB", (64, 64), "red").save(flat, "PNG")
    for sample, data in (("whole", photograph), ("half", small.getvalue()), ("flat", flat.getvalue())):
        document = {"texts": [], "images": [f"{sample}.png"]}
        make_tar(world.raw / f"{sample}.tar", [(f"{sample}.json", document), (f"{sample}.png", data)])
        (tmp_path / sample).write_bytes(data)
    world.command("run")

    def named(*arguments: object) -> tuple[set[str], str]:
        done = world.command("erase", "--dry-run", *arguments)
        assert done.returncode == 0, done
        found = {line.partition(":")[0] for line in done.stdout.splitlines() if "; raw: " in line}
        return found, done.stderr

    assert named("--image", tmp_path / "whole") == ({"whole", "half"}, "")
    assert named("--md5", hashlib.md5(photograph).hexdigest()) == ({"whole"}, "")
    warning = "mm-assets: warning: {}: its very bytes are looked for, not what looks like it: {}\n"
    found, told = named("--image", tmp_path / "flat")
    assert found == {"flat"} and told == warning.format(tmp_path / "flat", "it has hardly any detail")
    monkeypatch.setitem(sys.modules, "pdqhash", None)
    found, told = named("--image", tmp_path / "half")
    assert found == {"half"} and "The perceptual hash needs pdqhash: pip install" in told
    (tmp_path / "no").write_text("no")
    assert world.refused("erase", "--image", tmp_path / "no").startswith(f"{tmp_path / 'no'}: ")
    assert (
        world.refused("erase", "--image", tmp_path / "none") == f"{tmp_path / 'none'}: no such file or folder"
    )
    assert f"(default radius: {DEFAULT_RADIUS} of 256 bits)" in " ".join(world.ok("erase", "--help").split())
    line = world.refused("erase", "--md5", "0" * 32, MM_STORAGE=str(tmp_path / "other"))
    assert line.endswith("name the storage root of the graph with MM_STORAGE")


def test_several_of_a_file(world: World, tmp_path: Path) -> None:
    lists = {
        "a.csv": f"kind,value\nsample_id,{A1}\n",
        "b.jsonl": json.dumps({"kind": "url", "value": url_of(B1)}) + "\n\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    pq.write_table(pa.table({"kind": ["sample_id"], "value": [C1]}), tmp_path / "c.parquet")
    files = [argument for name in (*lists, "c.parquet") for argument in ("--from", str(tmp_path / name))]
    world.ok("erase", *files, "--drop-tags")
    assert world.samples() == {A2, B2}
    needles = [needle for sample in (A1, B1, C1) for needle in needles_of(sample)]
    assert world.with_any(needles, world.storage, world.home) == []


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.csv", "kind,value\nsample,a\n", "row 1: 'sample' is none of"),
        ("x.csv", "kind\nurl\n", "row 1: no 'value'"),
        ("x.csv", "kind;value\nurl;a\n", "row 1: no 'kind'"),
        ("x.csv", "kind,value\nurl\n", "row 1: value is None, not a text"),
        ("x.csv", "kind,value\nurl,a,b\n", "row 1: has more cells than there are columns"),
        ("x.csv", 'kind,value\nurl,"a\nurl,b\n', "line 3: no CSV: unexpected end of data"),
        ("x.csv", 'kind,value\nurl,"a\nurl,"b"\n', "line 3: no CSV: ',' expected after '\"'"),
        ("x.csv", f"kind,value\nurl,{'x' * 200_000}\n", "line 2: no CSV: field larger than field limit"),
        ("x.csv", f"kind,value,radius\npdq,{'a' * 64},-1\n", "row 1: radius is '-1', not a number of bits"),
        ("x.jsonl", '{"kind": "sha256", "value": "00"}', "row 1: sha256: '00' is not 64 hex digits"),
        ("x.jsonl", "[1]", "line 1: no JSON object"),
        ("x.jsonl", "[" * 200_000, "line 1: no JSON object"),
        ("x.jsonl", "{}", "row 1: no 'kind'"),
        ("x.jsonl", '{"kind": "url", "value": 12}', "row 1: value is 12, not a text"),
        ("x.jsonl", '{"kind": ["url"], "value": "a"}', "row 1: kind is ['url'], not a text"),
        ("x.jsonl", '{"kind": "pdq", "value": "a", "radius": 1e999}', "row 1: radius is inf, not a number"),
        ("x.jsonl", '{"kind": "pdq", "value": "a", "radius": "x"}', "row 1: radius is 'x', not a number"),
        ("x.parquet", "nothing", "not a readable Parquet file"),
    ],
)
def test_bad_lists(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(NotErasedError) as caught:
        entries_in(str(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}: {told}")
    assert len(str(caught.value)) < 400


def test_a_bad_list_is_one_line_of_the_command(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"kind": "sample_id", "value": null}')
    assert "x.jsonl: row 1: value is None, not a text" in world.refused(
        "erase", "--from", tmp_path / "x.jsonl"
    )


def test_what_it_refuses(world: World) -> None:
    (world.folder / "ids.txt").write_text(f"{B1}\n{A1}\n")
    line = world.refused("erase", "--sample-id", A1, "--drop-tags", MM_DROP_IDS=str(world.folder / "ids.txt"))
    assert line.startswith(f"{world.folder / 'ids.txt'}: names sample {A1!r}: take it out of the list")
    assert "nothing is named to look for" in world.refused("erase", "--dry-run")
    assert world.ok("erase").startswith("nothing is unfinished, and nothing new is named")
    with sole_writer(ErasureStore(str(world.storage)).folder) as is_ours:
        assert is_ours
        line = world.refused("erase", "--sample-id", A1, "--drop-tags")
        assert "another mm-assets erase is going on here" in line
        assert line.endswith("until then nothing of this call is blocked")
    done = world.command("erase", "--pdq", "00:1")
    assert done.returncode == 2 and "pdq: '00' is not 64 hex digits" in done.stderr


def test_it_waits_for_what_is_unfinished(world: World) -> None:
    """The deny list is in force all the same."""
    with dg.DagsterInstance.from_config(str(world.home)) as instance:
        job = build_definitions().resolve_job_def("all_assets")
        location = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("location"), "repository")
        origin = location.get_job_origin(job.name)
        queued = instance.create_run_for_job(job, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin)
        done = world.command("erase", "--sample-id", A1, "--drop-tags")
        told = f"run {queued.run_id} is unfinished; call mm-assets erase again when it has ended, or end it"
        assert (done.returncode, done.stderr) == (1, f"mm-assets: {told}\n")
        assert DenyList.read(str(world.storage)).hides_sample(A1) and A1 in world.samples()
        instance.delete_run(queued.run_id)
    assert "resumed\n" in world.ok("erase")
    assert world.with_any(needles_of(A1), world.storage, world.home) == []


RANDOM_KILLS = int(os.environ.get("TEST_KILLS", "1"))


STEPS = ("raw shard", "materializing", "rebuilt", "tag v1", "earlier versions", "surveys", "temporary",
         "event log", "scanned")  # fmt: skip


def test_killed_at_each_step_it_goes_on(world: World) -> None:
    """One erasure, begun and killed again and again: at any time, then each time at a later step."""
    command = [sys.executable, "-m", "mm_assets.cli", "erase"]
    asked = ["--sample-id", A1, "--drop-tags", "--raw"]
    environment = commands.environment(**world.settings)
    rng = random.Random(os.environ.get("TEST_SEED", "0"))
    codes: list[int] = []

    def kill(step: str, delay: float = 0.0, more: Sequence[str] = ()) -> None:
        process = subprocess.Popen([*command, *more], env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if step in line:
                time.sleep(delay)
                process.kill()
                break
        process.stdout.close()
        codes.append(process.wait())
        assert len(ErasureStore(str(world.storage)).all()) == 1

    kill("blocked from", more=asked)
    for _ in range(RANDOM_KILLS):
        kill("resumed", rng.uniform(0.0, 0.8))
    for step in STEPS:
        kill(step)
    assert codes[:-1] == [-signal.SIGKILL] * (len(codes) - 1)
    assert codes[-1] in (-signal.SIGKILL, 0), "the last kill may come too late"
    last = world.command("erase")
    told = world.ok("erase", "--list")
    assert told.count("erasure ") == 1 and "; finished " in told, last
    assert world.with_any(needles_of(A1), world.storage, world.home, world.raw) == []
    assert world.samples() == {A2, B1, B2, C1}
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")
    assert "due: 0 shards" in world.ok("status")
    with tarfile.open(world.raw / "a.tar") as tar:
        assert tar.getnames() == list(members_of(BAD, A2))
