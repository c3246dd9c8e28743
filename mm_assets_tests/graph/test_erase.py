"""``mm-assets erase``: what is named leaves everything and stays out; a certificate says so."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from PIL import Image

from mm_assets.accounting.erasures import URL, DenyList, Entry, ErasureStore
from mm_assets.definitions import build_definitions
from mm_assets.filters.known_hashes import DEFAULT_RADIUS, KnownHashes
from mm_assets.formats.lance.table import maintain
from mm_assets.storage.stamps import sole_writer
from mm_assets.versions import erasing, erasure_plan
from mm_assets.versions.erasure_request import NotErasedError, entries_in
from mm_assets_tests.accounting.test_scan import Here
from mm_assets_tests.cli import commands
from mm_assets_tests.filters.test_contamination import jpeg
from mm_assets_tests.formats.brute_force import files_with, versions_with
from mm_assets_tests.formats.raw_tars import make_tar, tar_members

SETTINGS = {"MM_WORKERS": "1", "MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "2", "MM_MAX_LOSS": "1"}


def _image(seed: str, width: int = 60) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (width, 48), random.Random(seed).randbytes(3 * width * 48)).save(file, "PNG")
    return file.getvalue()


def _text(sample: str) -> str:
    return " ".join(f"word{random.Random(f'{sample} {number}').getrandbits(40)}" for number in range(12))


def _url(sample: str) -> str:
    return f"https://example.org/pages/{hashlib.md5(sample.encode()).hexdigest()}.html"


SHARED = _image("shared")


def _members(sample: str) -> dict[str, bytes]:
    """A document of a text and three pictures: kept, dropped, shared with all others; of `BAD` one is cut."""
    images = {
        f"{sample}.0.png": _image(f"{sample} kept"),
        f"{sample}.1.png": _image(f"{sample} dropped", width=20),
        f"{sample}.2.png": SHARED,
    }
    if sample == BAD:
        images[f"{sample}.1.png"] = images[f"{sample}.1.png"][:2000]
    document = {
        "texts": [_text(sample), None, None, None],
        "images": [None, *images],
        "url": _url(sample),
    }
    return {f"{sample}.json": json.dumps(document).encode(), **images}


def _of(*samples: str) -> dict[str, bytes]:
    return {name: data for sample in samples for name, data in _members(sample).items()}


@dataclass(frozen=True)
class World:
    """Raw shards, a storage and a Dagster home in one folder, which is the same for each test."""

    folder: Path

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def settings(self) -> dict[str, str]:
        places = {"MM_RAW_SHARDS": self.raw, "MM_STORAGE": self.storage, "DAGSTER_HOME": self.home}
        return {**SETTINGS, **{name: str(place) for name, place in places.items()}}

    def run(self, *arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
        return commands.run(*arguments, **{**self.settings, **settings})

    def ok(self, *arguments: object, **settings: str) -> str:
        done = self.run(*arguments, **settings)
        assert done.returncode == 0, done
        return done.stdout

    def refused(self, *arguments: object, **settings: str) -> str:
        """The line of a command that fails and changes nothing in raw shards or storage."""
        before = self.files(self.raw, self.storage)
        line = commands.only_line(self.run(*arguments, **settings))
        assert self.files(self.raw, self.storage) == before
        return line

    def files(self, *folders: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for folder in folders
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def with_any(self, needles: Sequence[bytes], *folders: Path) -> list[str]:
        """The files, and versions of the table, that have any of them."""
        return [
            *(name for folder in folders for name in files_with(folder, needles)),
            *versions_with(self.table, needles),
        ]

    @property
    def table(self) -> str:
        return str(self.storage / "lance" / "items.lance")

    def samples(self, output: str = "curated") -> set[str]:
        return {
            sample
            for path in (self.storage / output).glob("*.parquet")
            for sample in pq.read_table(path, columns=["sample_id"])["sample_id"].to_pylist()
        }

    def certificate(self) -> Mapping[str, object]:
        *_, last = ErasureStore(str(self.storage)).all()
        return vars(last)


def _needles(sample: str) -> list[bytes]:
    """What nobody else has: its id, its URL, words of its text, pieces of its pictures."""
    pictures = [data for name, data in _members(sample).items() if name.endswith(".png") and data != SHARED]
    pieces = [data[at : at + 48] for data in pictures for at in (300, 1100, 1800)]
    return [sample.encode(), _url(sample).encode(), _text(sample)[:40].encode(), *pieces]


A1, A2, B1, B2, C1, BAD = (f"sample-{name}-{hashlib.md5(name.encode()).hexdigest()[:8]}" for name in "abcdef")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three shards through the graph, a tag and a report; each shard has quarantine and dropped pictures."""
    world = World(tmp_path_factory.mktemp("erase") / "world")
    world.home.mkdir(parents=True)
    make_tar(world.raw / "a.tar", _of(A1, BAD, A2).items())
    make_tar(world.raw / "b.tar.gz", _of(B1, B2).items(), mode="w:gz")
    make_tar(world.raw / "c.tar", _of(C1).items())
    made = world.run("run")
    assert world.samples() == {A1, A2, B1, B2, C1}, made
    world.ok("tag", "v1")
    world.ok("report")
    shutil.copytree(world.folder, world.folder.with_name("template"))
    return world


@pytest.fixture
def world(template: World) -> Iterator[World]:
    """The same, as it was."""
    shutil.rmtree(template.folder)
    shutil.copytree(template.folder.with_name("template"), template.folder)
    yield template


def _small_world(folder: Path, **members: Mapping[str, bytes]) -> World:
    """Raw tars of these members, through the graph."""
    world = World(folder)
    world.home.mkdir()
    for name, of in members.items():
        make_tar(world.raw / f"{name}.tar", of.items())
    world.ok("run")
    return world


def _of_shard(world: World, name: str) -> dict[str, bytes]:
    """The data of a shard, without what says when it was made."""
    found = world.files(
        *(world.storage / output for output in ("curated", "filtered", "webdataset", "scores"))
    )
    return {path: data for path, data in found.items() if Path(path).name.startswith(f"{name}.")}


def test_a_sample_leaves_everything_and_nothing_else_does(world: World) -> None:
    everywhere = (world.storage, world.home)
    assert len(world.with_any(_needles(A1), *everywhere)) > 10
    others = {name: _of_shard(world, name) for name in "bc"}
    told = world.ok("erase", "--sample-id", A1, "--drop-tags")
    assert world.with_any(_needles(A1), *everywhere) == []
    assert world.samples() == world.samples("filtered") == {A2, B1, B2, C1}
    assert {name: _of_shard(world, name) for name in "bc"} == others
    assert "rebuilt: a\n" in told and "tag v1: dropped\n" in told
    assert told.splitlines()[-1].startswith("erased: 1 sample in 1 shard; no match is left; certificate: ")
    assert A1.encode() in (world.raw / "a.tar").read_bytes()
    certificate = world.certificate()
    assert certificate["partitions"] == {"a": 5} and certificate["finished"]
    assert certificate["rewritten"]["shards"] == ["a"]  # type: ignore[index]
    scan = certificate["scan"]
    assert isinstance(scan, dict) and scan["occurrences"] == [] and scan["files"] > 50
    assert any("a.tar may still have it" in line for line in scan["outside"])
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
    make_tar(world.raw / "a.tar", _of(A2, A1, "new-sample-of-a").items())
    make_tar(world.raw / "d.tar", _of(A1, "new-sample-of-d").items())
    world.run("run")
    assert world.samples() == {A2, B1, B2, C1, "new-sample-of-a", "new-sample-of-d"}
    assert world.with_any(_needles(A1), world.storage, world.home) == []


def test_several_at_once_leave_the_raw_tars_too(world: World) -> None:
    """By URL; one that is in quarantine; one in a packed tar."""
    before = {name: tar_members(world.raw / name) for name in ("a.tar", "b.tar.gz", "c.tar")}
    gone = (BAD, B2, C1)
    needles = [needle for sample in gone for needle in _needles(sample)]
    assert any(name.startswith("quarantine/") for name in world.with_any(_needles(BAD), world.storage))
    asked = ["--url", _url(C1), "--sample-id", BAD, "--sample-id", B2]
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
    assert world.with_any(_needles(A1), world.storage, world.home, world.raw) == []
    assert world.samples() == {A2, B1, B2, C1}


@pytest.mark.parametrize("by", ["url", "sha256"])
def test_a_raw_tar_that_follows_later_is_searched_by_what_was_asked_for(tmp_path: Path, by: str) -> None:
    """No output knows any more which sample that was."""
    world = _small_world(tmp_path, a=_of(A1, A2))
    asked = ["--url", _url(A1)]
    if by == "sha256":
        asked = ["--sha256", hashlib.sha256(_members(A1)[f"{A1}.0.png"]).hexdigest()]
    world.ok("erase", *asked)
    if by == "sha256":
        assert "only items of it are erased, and --raw takes" in world.refused("erase", *asked, "--raw")
        return
    told = world.ok("erase", *asked, "--raw")
    assert f"raw shard {world.raw / 'a.tar'}: " in told and " bytes removed" in told
    assert list(tar_members(world.raw / "a.tar")) == list(_of(A2))


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


def test_tags_are_dropped_only_if_that_is_said(world: World) -> None:
    line = world.refused("erase", "--sample-id", A1)
    assert line.endswith("1 tag would keep it: v1: --drop-tags drops them; nothing was changed")
    assert ErasureStore(str(world.storage)).all() == []


def _without_a1(world: World, *arguments: str) -> None:
    """Replace the raw shard by one without the sample, and make some of it anew."""
    make_tar(world.raw / "a.tar", _of(BAD, A2).items())
    world.ok(*arguments)
    assert A1 not in world.samples()


def test_what_only_earlier_states_have(world: World) -> None:
    _without_a1(world, "run", "--changed")
    told = world.ok("erase", "--sample-id", A1, "--dry-run")
    assert f"an earlier state: {A1}: the whole sample" in told and "--drop-tags: v1" in told
    assert "1 tag would keep it: v1" in world.refused("erase", "--sample-id", A1)
    assert "in earlier states alone" in world.ok("erase", "--sample-id", A1, "--drop-tags")
    assert world.with_any(_needles(A1), world.storage, world.home) == []
    assert world.certificate()["partitions"] == {}
    assert world.certificate()["found"]["samples"] == 1  # type: ignore[index]


def test_what_only_a_tag_has(world: World) -> None:
    """Not the table, but the list of samples of the tag."""
    _without_a1(world, "run", "--changed")
    shutil.rmtree(world.storage / "lance")
    assert "1 tag would keep it: v1" in world.refused("erase", "--sample-id", A1)
    world.ok("erase", "--sample-id", A1, "--drop-tags")
    assert files_with(world.storage, [A1.encode()]) == []


def test_after_its_shard_is_retired(world: World) -> None:
    (world.raw / "a.tar").unlink()
    line = world.refused("erase", "--sample-id", A1, "--drop-tags")
    assert line.startswith("shard 'a': no raw shard of it in MM_RAW_SHARDS: put it back, or remove")
    world.ok("retire", "a")
    world.ok("erase", "--sample-id", A1, "--drop-tags")
    assert world.with_any(_needles(A1), world.storage, world.home) == []
    assert world.samples() == {B1, B2, C1}
    world.ok("erase", "--sample-id", B1, "--drop-tags")
    (world.raw / "b.tar.gz").unlink()
    world.ok("retire", "b")
    assert "matched: 0 rows in 1 shard" in world.ok("erase", "--sample-id", B1)


def test_a_sample_of_the_same_id_stays(world: World) -> None:
    """Its document has the URL no more."""
    members = _of(A1, BAD, A2)
    name = f"{A1}.json"
    members[name] = members[name].replace(_url(A1).encode(), b"https://example.org/pages/another.html")
    make_tar(world.raw / "a.tar", members.items())
    world.ok("run", "--changed")
    world.ok("erase", "--url", _url(A1), "--drop-tags")
    gone = [_url(A1).encode()]
    assert world.with_any(gone, world.storage, world.home) == []
    assert A1 in world.samples() & world.samples("filtered") and world.certificate()["partitions"] == {}


def test_what_only_stale_outputs_have(world: World) -> None:
    world.ok("run", "--assets", "training_set")
    _without_a1(world, "run", "--assets", "curated_parquet")
    assert A1 in world.samples("filtered")
    told = world.ok("erase", "--url", _url(A1), "--drop-tags")
    assert "rebuilt: a\n" in told and "rebuilt: training_set\n" in told
    assert world.with_any(_needles(A1), world.storage, world.home) == []
    assert world.samples("filtered") == {A2, B1, B2, C1}


def test_what_a_run_beside_it_has_made(world: World) -> None:
    """One that was planned before the deny list was written, and ends before the erasure goes on."""
    root, new = str(world.storage), "sample-of-a-run"
    store, entries = ErasureStore(root), [Entry.of(URL, _url(new))]
    erasing.begin(store, entries, erasure_plan.plan(root, entries, Here(), is_whole=False), has_raw=False)
    folder = world.storage / "ledger" / "erasures"
    folder.rename(world.folder / "erasures")
    make_tar(world.raw / "d.tar", _of(new).items())
    world.run("run")
    assert new in world.samples()
    (world.folder / "erasures").rename(folder)
    told = world.ok("erase")
    assert "resumed\n" in told and "rebuilt: d\n" in told
    assert world.with_any(_needles(new), world.storage, world.home) == []
    assert world.certificate()["partitions"] == {"d": 5}


def test_what_nobody_can_look_for_is_said(world: World) -> None:
    told = world.ok("erase", "--sha256", "0" * 64, "--pdq", f"{'f0' * 32}:0")
    assert "bytes: nothing was looked for\n" in told
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
    make_tar(world.raw / "d.tar", _of("to-come-tomorrow", "new-sample").items())
    world.run("run")
    assert world.samples() == {A1, A2, B1, B2, C1, "new-sample"}


def test_by_the_bytes_of_an_image(world: World) -> None:
    picture = _members(A1)[f"{A1}.0.png"]
    world.ok("erase", "--sha256", hashlib.sha256(picture).hexdigest(), "--drop-tags")
    pieces = [picture[at : at + 48] for at in (300, 1100, 1800)]
    assert world.with_any(pieces, world.storage, world.home) == []
    assert world.samples() == {A2, B1, B2, C1}  # the policy drops samples that lack an image
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")
    line = world.refused(
        "erase", "--sha256", hashlib.sha256(_members(A2)[f"{A2}.0.png"]).hexdigest(), "--raw"
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
    world.run("run")

    def named(*arguments: object) -> tuple[set[str], str]:
        done = world.run("erase", "--dry-run", *arguments)
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


def test_after_a_compaction_of_the_table_and_behind_links(world: World) -> None:
    maintain(world.table)
    for name in ("curated", "versions"):
        (world.storage / name).rename(world.folder / f"linked-{name}")
        (world.storage / name).symlink_to(world.folder / f"linked-{name}")
    world.ok("erase", "--sample-id", A1, "--drop-tags")
    everywhere = (
        world.storage,
        world.home,
        world.folder / "linked-curated",
        world.folder / "linked-versions",
    )
    assert world.with_any(_needles(A1), *everywhere) == []
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")


def test_several_of_a_file(world: World, tmp_path: Path) -> None:
    lists = {
        "a.csv": f"kind,value\nsample_id,{A1}\n",
        "b.jsonl": json.dumps({"kind": "url", "value": _url(B1)}) + "\n\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    pq.write_table(pa.table({"kind": ["sample_id"], "value": [C1]}), tmp_path / "c.parquet")
    files = [argument for name in (*lists, "c.parquet") for argument in ("--from", str(tmp_path / name))]
    world.ok("erase", *files, "--drop-tags")
    assert world.samples() == {A2, B2}
    needles = [needle for sample in (A1, B1, C1) for needle in _needles(sample)]
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
    done = world.run("erase", "--pdq", "00:1")
    assert done.returncode == 2 and "pdq: '00' is not 64 hex digits" in done.stderr


def test_it_waits_for_what_is_unfinished(world: World) -> None:
    """The deny list is in force all the same."""
    with dg.DagsterInstance.from_config(str(world.home)) as instance:
        job = build_definitions().resolve_job_def("all_assets")
        location = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("location"), "repository")
        origin = location.get_job_origin(job.name)
        queued = instance.create_run_for_job(job, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin)
        done = world.run("erase", "--sample-id", A1, "--drop-tags")
        told = f"run {queued.run_id} is unfinished; call mm-assets erase again when it has ended, or end it"
        assert (done.returncode, done.stderr) == (1, f"mm-assets: {told}\n")
        assert DenyList.read(str(world.storage)).hides_sample(A1) and A1 in world.samples()
        instance.delete_run(queued.run_id)
    assert "resumed\n" in world.ok("erase")
    assert world.with_any(_needles(A1), world.storage, world.home) == []


def test_a_document_that_states_the_digest_which_is_erased(tmp_path: Path) -> None:
    """The certificate has that digest, too: it is what was asked for, and no trace."""
    members = _of(A1)
    digest = hashlib.sha256(members[f"{A1}.0.png"]).hexdigest()
    document = json.loads(members[f"{A1}.json"]) | {"page_digest": digest}
    world = _small_world(tmp_path, a={**members, f"{A1}.json": json.dumps(document).encode()}, b=_of(B1))
    assert len(files_with(world.storage, [digest.encode()])) > 1
    for asked in (["--sample-id", A1, "--sha256", digest], ["--sample-id", A1, "--sha256", digest, "--raw"]):
        world.ok("erase", *asked)
        assert world.certificate()["finished"]
        assert all(
            name.startswith("ledger/erasures/") for name in files_with(world.storage, [digest.encode()])
        )


def test_a_picture_in_quarantine_is_found_by_its_look(tmp_path: Path) -> None:
    """Its declared digest is another one: no score tells of it, and the raw shard has it still."""
    picture = _members(A1)[f"{A1}.0.png"]
    document = {"sha256": "0" * 64, "images": [f"{A1}.0.png"], "texts": [None]}
    of_a1 = {f"{A1}.json": json.dumps(document).encode(), f"{A1}.0.png": picture}
    world = _small_world(tmp_path, a={**of_a1, **_of(A2, C1)})
    pieces = [picture[at : at + 48] for at in (300, 1100, 1800)]
    assert world.with_any(pieces, world.storage) == ["quarantine/a.parquet"]
    digest, hash_ = hashlib.sha256(picture).hexdigest(), KnownHashes.hash_of(picture)
    world.ok("tag", "v1")
    assert any(name.startswith("versions/losses/") for name in files_with(world.storage, [digest.encode()]))
    assert files_with(world.home, [digest.encode()]) != []
    asked = ["--pdq", f"{hash_}:0", "--sha256", digest, "--sample-id", A2, "--drop-tags"]
    told = world.ok("erase", *asked)
    assert "tag v1: dropped\n" in told and list((world.storage / "versions" / "losses").iterdir()) == []
    assert (
        "rebuilt: a\n" in told and ": 1 (image, other samples have it" in told
    )  # `SHARED`, of the other one
    assert files_with(world.home, [digest.encode()]) == []
    assert world.with_any(pieces, world.storage, world.home) == []


def test_a_shard_that_cannot_be_rebuilt_keeps_no_erasure_from_its_end(tmp_path: Path) -> None:
    """Its raw shard is gone, though named, or it is damaged: unfinished, and `retire` leads on."""
    world = _small_world(tmp_path, a=_of(A1), b=_of(B1), c=_of(C1))
    world.ok("tag", "v1")
    named = {"MM_RAW_SHARDS": " ".join(str(world.raw / f"{name}.tar") for name in "abc")}
    (world.raw / "b.tar").write_bytes(b"damaged" * 1000)
    done = world.run("erase", "--sample-id", B1, "--drop-tags", **named)
    assert done.returncode == 1 and "rebuilt: " not in done.stdout and "v1: " in world.ok("tag", "--list")
    assert "cannot be rebuilt: shard 'b': it fails, as said above: mend that or remove" in done.stderr
    done = world.run("erase", "--sample-id", C1, "--drop-tags", **named)  # it does not wait for the other
    assert done.returncode == 1 and world.certificate()["finished"] and "rebuilt: c\n" in done.stdout
    (world.raw / "a.tar").unlink()
    line = world.refused("erase", "--sample-id", A1, **named)
    assert line.startswith(f"shard 'a': its raw shard {world.raw / 'a.tar'} does not exist: put it back, or")
    world.ok("retire", "a", "b", **named)
    told = world.ok("erase", "--sample-id", A1, **named)
    assert "no outputs left: b\n" in told and "rebuilt" not in told
    needles = [needle for sample in (A1, B1, C1) for needle in _needles(sample)]
    assert world.with_any(needles, world.storage, world.home) == []


def test_what_was_found_of_all_shards_and_the_training_set(tmp_path: Path) -> None:
    """A copy of a picture of the sample stays in another shard, and nothing there names the sample."""
    world = World(tmp_path)
    world.home.mkdir()
    more = {"MM_DEDUP_IMAGES": "exact"}
    copied = _image(f"{A1} kept")
    make_tar(world.raw / "a.tar", _of(A1, A2).items())
    make_tar(world.raw / "b.tar", {**_of(B1, B2), f"{B1}.0.png": copied}.items())
    make_tar(world.raw / "c.tar", _of(C1).items())
    world.ok("run", **more)
    world.ok("run", "--assets", "training_set", **more)
    needles = [A1.encode(), _url(A1).encode(), _text(A1)[:40].encode()]
    before = world.with_any(needles, world.storage)
    held = {"ledger/statistics/duplicates/shards/b.parquet", "ledger/accounts/filtered_parquet/b.parquet"}
    assert held <= {*before} and "training/plan.parquet" in before
    told = world.ok("erase", "--sample-id", A1, **more)
    assert world.with_any(needles, world.storage, world.home) == []
    assert "rebuilt: a and 2 more\n" in told and "rebuilt: training_set\n" in told
    assert "not searched for: 2 (image, other samples have it, too)\n" in told
    rows = pq.read_table(world.storage / "filtered" / "b.parquet").to_pylist()
    assert copied in [row["binary_content"] for row in rows if row["sample_id"] == B1]
    status = world.ok("status", **more)
    assert "due: 0 shards" in status and "training set: current" in status


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
    last = world.run("erase")
    told = world.ok("erase", "--list")
    assert told.count("erasure ") == 1 and "; finished " in told, last
    assert world.with_any(_needles(A1), world.storage, world.home, world.raw) == []
    assert world.samples() == {A2, B1, B2, C1}
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")
    assert "due: 0 shards" in world.ok("status")
    with tarfile.open(world.raw / "a.tar") as tar:
        assert tar.getnames() == list(_of(BAD, A2))


def test_a_short_id_with_a_cut_picture_and_one_that_no_document_names(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.home.mkdir()
    cut, loose, other = "000000013", "000000014", "000000015"
    members = _of(cut, loose, other) | {f"{loose}.7.png": _image("loose")}
    members[f"{cut}.0.png"] = members[f"{cut}.0.png"][:2000]
    make_tar(world.raw / "a.tar", [*members.items(), *_of(loose).items()])  # one id twice
    world.run("run")
    told = world.ok("erase", "--sample-id", cut, "--sample-id", loose)
    assert "not searched for: 2 (sample_id, short: within other text)\n" in told
    assert world.with_any([cut.encode(), loose.encode()], world.storage, world.home) == []
    for path in world.storage.rglob("*.parquet"):  # also what is packed in schemas
        texts = pq.read_schema(path).metadata or {}
        assert not any(name.encode() in text for name in (cut, loose) for text in texts.values())
    assert world.samples() == {other}
