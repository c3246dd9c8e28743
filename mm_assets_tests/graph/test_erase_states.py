"""``mm-assets erase`` of what earlier states, tags, stale outputs, quarantine or the ledger alone have."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from mm_assets.accounting.erasures import URL, Entry, ErasureStore
from mm_assets.accounting.traces import RawDocuments
from mm_assets.filters.known_hashes import KnownHashes
from mm_assets.formats.lance.table import maintain
from mm_assets.versions import erasing, erasure_plan
from mm_assets_tests.accounting.test_scan import Here
from mm_assets_tests.formats.brute_force import files_with
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.erased_world import (
    A1,
    A2,
    B1,
    B2,
    BAD,
    C1,
    World,
    image_of,
    members_of,
    needles_of,
    small_world,
    text_of,
    url_of,
)


def _without_a1(world: World, *arguments: str) -> None:
    """Replace the raw shard by one without the sample, and make some of it anew."""
    make_tar(world.raw / "a.tar", members_of(BAD, A2).items())
    world.ok(*arguments)
    assert A1 not in world.samples()


def test_tags_are_dropped_only_if_that_is_said(world: World) -> None:
    line = world.refused("erase", "--sample-id", A1)
    assert line.endswith("1 tag would keep it: v1: --drop-tags drops them; nothing was changed")
    assert ErasureStore(str(world.storage)).all() == []


def test_what_only_earlier_states_have(world: World) -> None:
    _without_a1(world, "run", "--changed")
    told = world.ok("erase", "--sample-id", A1, "--dry-run")
    assert f"an earlier state: {A1}: the whole sample" in told and "--drop-tags: v1" in told
    assert "1 tag would keep it: v1" in world.refused("erase", "--sample-id", A1)
    assert "in earlier states alone" in world.ok("erase", "--sample-id", A1, "--drop-tags")
    assert world.with_any(needles_of(A1), world.storage, world.home) == []
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
    assert world.with_any(needles_of(A1), world.storage, world.home) == []
    assert world.samples() == {B1, B2, C1}
    world.ok("erase", "--sample-id", B1, "--drop-tags")
    (world.raw / "b.tar.gz").unlink()
    world.ok("retire", "b")
    assert "matched: 0 rows in 1 shard" in world.ok("erase", "--sample-id", B1)


def test_a_sample_of_the_same_id_stays(world: World) -> None:
    """Its document has the URL no more."""
    members = members_of(A1, BAD, A2)
    name = f"{A1}.json"
    members[name] = members[name].replace(url_of(A1).encode(), b"https://example.org/pages/another.html")
    make_tar(world.raw / "a.tar", members.items())
    world.ok("run", "--changed")
    world.ok("erase", "--url", url_of(A1), "--drop-tags")
    gone = [url_of(A1).encode()]
    assert world.with_any(gone, world.storage, world.home) == []
    assert A1 in world.samples() & world.samples("filtered") and world.certificate()["partitions"] == {}


def test_what_only_stale_outputs_have(world: World) -> None:
    world.ok("run", "--assets", "training_set")
    _without_a1(world, "run", "--assets", "curated_parquet")
    assert A1 in world.samples("filtered")
    told = world.ok("erase", "--url", url_of(A1), "--drop-tags")
    assert "rebuilt: a\n" in told and "rebuilt: training_set\n" in told
    assert world.with_any(needles_of(A1), world.storage, world.home) == []
    assert world.samples("filtered") == {A2, B1, B2, C1}


def test_what_a_run_beside_it_has_made(world: World) -> None:
    """One that was planned before the deny list was written, and ends before the erasure goes on."""
    root, new = str(world.storage), "sample-of-a-run"
    store, entries = ErasureStore(root), [Entry.of(URL, url_of(new))]
    erasing.begin(
        store,
        entries,
        erasure_plan.plan(root, entries, Here(), RawDocuments(), is_whole=False),
        has_raw=False,
    )
    folder = world.storage / "ledger" / "erasures"
    folder.rename(world.folder / "erasures")
    make_tar(world.raw / "d.tar", members_of(new).items())
    world.command("run")
    assert new in world.samples()
    (world.folder / "erasures").rename(folder)
    told = world.ok("erase")
    assert "resumed\n" in told and "rebuilt: d\n" in told
    assert world.with_any(needles_of(new), world.storage, world.home) == []
    assert world.certificate()["partitions"] == {"d": 5}


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
    assert world.with_any(needles_of(A1), *everywhere) == []
    assert world.ok("prove").splitlines()[-1].startswith("proven: every item of 3 shards")


def test_a_document_that_states_the_digest_which_is_erased(tmp_path: Path) -> None:
    """The certificate has that digest, too: it is what was asked for, and no trace."""
    members = members_of(A1)
    digest = hashlib.sha256(members[f"{A1}.0.png"]).hexdigest()
    document = json.loads(members[f"{A1}.json"]) | {"page_digest": digest}
    world = small_world(
        tmp_path, a={**members, f"{A1}.json": json.dumps(document).encode()}, b=members_of(B1)
    )
    assert len(files_with(world.storage, [digest.encode()])) > 1
    for asked in (["--sample-id", A1, "--sha256", digest], ["--sample-id", A1, "--sha256", digest, "--raw"]):
        world.ok("erase", *asked)
        assert world.certificate()["finished"]
        assert all(
            name.startswith("ledger/erasures/") for name in files_with(world.storage, [digest.encode()])
        )


def test_a_picture_in_quarantine_is_found_by_its_look(tmp_path: Path) -> None:
    """Its declared digest is another one: no score tells of it, and the raw shard has it still."""
    picture = members_of(A1)[f"{A1}.0.png"]
    document = {"sha256": "0" * 64, "images": [f"{A1}.0.png"], "texts": [None]}
    of_a1 = {f"{A1}.json": json.dumps(document).encode(), f"{A1}.0.png": picture}
    world = small_world(tmp_path, a={**of_a1, **members_of(A2, C1)})
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
    world = small_world(tmp_path, a=members_of(A1), b=members_of(B1), c=members_of(C1))
    world.ok("tag", "v1")
    named = {"MM_RAW_SHARDS": " ".join(str(world.raw / f"{name}.tar") for name in "abc")}
    (world.raw / "b.tar").write_bytes(b"damaged" * 1000)
    done = world.command("erase", "--sample-id", B1, "--drop-tags", **named)
    assert done.returncode == 1 and "rebuilt: " not in done.stdout and "v1: " in world.ok("tag", "--list")
    assert "cannot be rebuilt: shard 'b': it fails, as said above: mend that or remove" in done.stderr
    done = world.command("erase", "--sample-id", C1, "--drop-tags", **named)  # it does not wait for the other
    assert done.returncode == 1 and world.certificate()["finished"] and "rebuilt: c\n" in done.stdout
    (world.raw / "a.tar").unlink()
    line = world.refused("erase", "--sample-id", A1, **named)
    assert line.startswith(f"shard 'a': its raw shard {world.raw / 'a.tar'} does not exist: put it back, or")
    world.ok("retire", "a", "b", **named)
    told = world.ok("erase", "--sample-id", A1, **named)
    assert "no outputs left: b\n" in told and "rebuilt" not in told
    needles = [needle for sample in (A1, B1, C1) for needle in needles_of(sample)]
    assert world.with_any(needles, world.storage, world.home) == []


def test_what_was_found_of_all_shards_and_the_training_set(tmp_path: Path) -> None:
    """A copy of a picture of the sample stays in another shard, and nothing there names the sample."""
    world = World(tmp_path)
    world.home.mkdir()
    more = {"MM_DEDUP_IMAGES": "exact"}
    copied = image_of(f"{A1} kept")
    make_tar(world.raw / "a.tar", members_of(A1, A2).items())
    make_tar(world.raw / "b.tar", {**members_of(B1, B2), f"{B1}.0.png": copied}.items())
    make_tar(world.raw / "c.tar", members_of(C1).items())
    world.ok("run", **more)
    world.ok("run", "--assets", "training_set", **more)
    needles = [A1.encode(), url_of(A1).encode(), text_of(A1)[:40].encode()]
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


def test_a_short_id_with_a_cut_picture_and_one_that_no_document_names(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.home.mkdir()
    cut, loose, other = "000000013", "000000014", "000000015"
    members = members_of(cut, loose, other) | {f"{loose}.7.png": image_of("loose")}
    members[f"{cut}.0.png"] = members[f"{cut}.0.png"][:2000]
    make_tar(world.raw / "a.tar", [*members.items(), *members_of(loose).items()])  # one id twice
    world.command("run")
    told = world.ok("erase", "--sample-id", cut, "--sample-id", loose)
    assert "not searched for: 2 (sample_id, short: within other text)\n" in told
    assert world.with_any([cut.encode(), loose.encode()], world.storage, world.home) == []
    for path in world.storage.rglob("*.parquet"):  # also what is packed in schemas
        texts = pq.read_schema(path).metadata or {}
        assert not any(name.encode() in text for name in (cut, loose) for text in texts.values())
    assert world.samples() == {other}


def test_by_the_url_of_a_document_that_ingest_dropped(tmp_path: Path) -> None:
    """It has a cut picture, and no output keeps its document."""
    cut = f"{A1}.0.png"
    members = members_of(A1, A2)
    members[cut] = members[cut][:2000]
    world = small_world(tmp_path, a=members, b=members_of(B1))
    assert world.samples() == {A2, B1}
    assert "quarantine/a.parquet" in world.with_any(needles_of(A1), world.storage)
    assert f"a: {A1}: the whole sample" in world.ok("erase", "--url", url_of(A1), "--dry-run")
    told = world.ok("erase", "--url", url_of(A1))
    assert "rebuilt: a\n" in told and "ingest dropped" not in told
    assert world.with_any(needles_of(A1), world.storage, world.home) == []
