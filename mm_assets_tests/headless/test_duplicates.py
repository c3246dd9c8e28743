"""`mm-assets run` without duplicates: verdicts come first, and what they do not change is not made again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mm_assets.accounting.accounts import Ledger
from mm_assets_tests.cli.commands import fine
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.headless.conftest import ASSETS, FILTERED, Project

LONG = " ".join(f"word{number}" for number in range(200))
WHOLE = ["metadata", "text", "image"]


def filtered(project: Project) -> dict[str, list[str]]:
    """The modalities of the rows of each filtered shard."""
    folder = project.storage / "filtered"
    found = {path.stem: pq.read_table(path)["modality"].to_pylist() for path in folder.glob("*.parquet")}
    return dict(sorted(found.items()))


def test_one_of_equal_images_stays_whatever_the_order_of_shards(project: Project) -> None:
    # What stays in place of copies is lost to no other filter: all others judge before.
    exact = {"MM_DEDUP_IMAGES": "exact", "MM_MIN_IMAGES": "1"}
    project.shards("bc")  # with the same image
    told = fine(project.run(**exact)).splitlines()
    assert told[1:5] == [
        "first pass: scores of all shards, for dedup_images",
        "images: 1 copy of 2 images (50.0%), 1 exact and 0 near, in 1 cluster",
        "  1 copy of b [1]",
        "2 of 2 shards with other verdicts than before",
    ]
    assert told[-3] == "proven: every item of 2 shards is in 5 outputs as it was written (proof/proof.json)"
    assert filtered(project) == {"b": WHOLE, "c": WHOLE[:2]}
    assert "filtered by dedup_images: copy of b [1]" in project.command("explain", "c").stdout

    project.shard("a")  # is preferred to all others
    told = fine(project.run("a", *FILTERED, **exact)).splitlines()
    assert "`mm-assets run --changed` makes 2 other shards with other verdicts anew" in told
    fine(project.run(*FILTERED, **exact))
    assert filtered(project) == {"a": WHOLE, "b": WHOLE[:2], "c": WHOLE[:2]}
    assert project.made()["filtered_parquet"] == ["[a]", "b", "c"]


def test_a_run_of_what_is_due_makes_what_new_verdicts_change(project: Project) -> None:
    """In one run where few shards lie between; what is as it should be stays, and scores are told once."""
    exact = {"MM_DEDUP_DOCUMENTS": "exact"}
    for name, text in (("b", "one"), ("c", "two"), ("d", "three")):
        project.shard(name, text)
    fine(project.run(**exact))
    members: list[tuple[str, Any]] = []
    for name, text in (("a1", "one"), ("a2", "three")):
        members.append((f"{name}.json", {"texts": [text, None], "images": [None, f"{name}.png"]}))
        members.append((f"{name}.png", picture(0)[1]))
    make_tar(project.raw / "a.tar", members)  # the first shard: its documents are preferred
    told = fine(project.run("--missing", "--changed", **exact)).splitlines()
    assert "3 of 4 shards with other verdicts than before" in told
    assert filtered(project) == {"a": WHOLE * 2, "b": [], "c": WHOLE, "d": []}
    assert project.made(2).keys() == {"curated_parquet", "image_scores", "sample_scores"}
    assert project.made(1).keys() == set(ASSETS).difference(project.made(2))
    assert project.made()["filtered_parquet"] == ["[c]", "b", "d"]
    assert project.run("--missing", "--changed", **exact).stdout == "nothing to do\n"


def test_a_fault_of_the_first_pass_is_told(project: Project, tmp_path: Path) -> None:
    project.shard("a")
    listed = tmp_path / "list.csv"
    listed.write_text("sample_id,position\nb,\n")
    told = project.run(MM_DEDUP_IMAGES="exact", MM_DROP_IDS=str(listed))
    assert (told.returncode, told.stderr) == (1, "")
    assert f"drop_ids: {listed}: row 1: position: no value" in told.stdout
    assert project.runs() == 1


def test_copies_of_what_was_retired_are_looked_at_anew(project: Project, tmp_path: Path) -> None:
    exact = {"MM_DEDUP_IMAGES": "exact"}
    project.shards("abc")
    project.shard("d", "another text")
    fine(project.run(*FILTERED[:-1], f"{FILTERED[-1]},final_tars", **exact))
    assert filtered(project) == {"a": WHOLE, **dict.fromkeys("bcd", WHOLE[:2])}
    (project.raw / "a.tar").unlink()
    assert (
        "  3 other shards have copies of what is gone: mm-assets run --changed filters them anew"
        in fine(project.command("retire", **exact)).splitlines()
    )
    line = "mm-assets: warning: {}3 shards are due, and taken as last made: "
    line += "mm-assets run --failed --changed makes what is due"
    training = project.run("--assets", "training_set", **exact)
    assert (training.returncode, training.stderr) == (0, f"{line.format('training_set: ')}\n")
    published = project.command("publish", tmp_path / "there", "--outputs", "filtered", **exact)
    assert (published.returncode, published.stderr) == (0, f"{line.format('')}\n")
    wrong = project.command(
        "publish", tmp_path / "there", "--outputs", "filtered", MM_DROP_IDS=str(tmp_path / "no.csv")
    )
    assert wrong.returncode == 0
    assert "warning: not known whether shards are due: drop_ids: " in wrong.stderr
    broken = tmp_path / "broken"
    shutil.copytree(project.home, broken, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    (broken / "history" / "runs" / "index.db").write_bytes(b"no database" * 1000)
    wrong = project.command("publish", tmp_path / "there", "--outputs", "filtered", DAGSTER_HOME=str(broken))
    assert wrong.returncode == 0 and "all equal" in wrong.stdout
    assert "warning: not known whether shards are due: " in wrong.stderr
    assert sorted(path.name for path in verdicts(project).glob("*")) == [
        "b.parquet",
        "c.parquet",
        "d.parquet",
    ]
    assert "other duplicates: 3 shards in filtered_parquet" in " ".join(
        project.plan("--changed", *FILTERED, **exact)
    )
    fine(project.run(*FILTERED, **exact))
    assert filtered(project) == {"b": WHOLE, "c": WHOLE[:2], "d": WHOLE[:2]}


def test_damaged_verdicts_are_found_again(project: Project) -> None:
    project.shards("ab")
    exact = {"MM_DEDUP_IMAGES": "exact"}
    fine(project.run(**exact))
    damaged = verdicts(project) / "b.parquet"
    whole = damaged.read_bytes()
    find = ("duplicates", "--set", "dedup_images=exact")
    for left in (whole[:100], None):
        damaged.unlink()
        if left is not None:
            damaged.write_bytes(left)
        found = project.command(*find)
        assert "0 of 2 shards with other verdicts than before" in found.stdout
        assert "b.parquet" in found.stderr and ": written anew" in found.stderr
        assert damaged.read_bytes() == whole
    assert project.command(*find).stderr == ""

    index = damaged.parent.parent / "index.parquet"
    whole = index.read_bytes()
    index.write_bytes(whole[:50])
    found = project.command(*find)
    assert "2 of 2 shards with other verdicts than before" in found.stdout
    assert "index.parquet: damaged: " in found.stderr
    assert index.read_bytes() == whole
    assert fine(project.run(**exact)).startswith("nothing to do")


def test_every_image_stays_somewhere(project: Project) -> None:
    """Images A and C of x, A and B of y, B and D of z: copies count for a filter of their sample."""
    images = {"w": "C", "x": "AC", "y": "AB", "z": "BD"}
    for name, shown in images.items():
        members = [(f"{name}.{image}.png", picture(ord(image))[1]) for image in shown]
        document = {"texts": [None] * len(shown), "images": [member for member, _ in members]}
        make_tar(project.raw / f"{name}.tar", [(f"{name}.json", document), *members])
    fine(project.run(*FILTERED, MM_DEDUP_IMAGES="exact", MM_MIN_IMAGES="2"))
    assert filtered(project) == {
        "w": [],
        "x": ["metadata", "image", "image"],
        "y": ["metadata", "image"],
        "z": ["metadata", "image"],
    }


def verdicts(project: Project) -> Path:
    return project.storage / "ledger" / "statistics" / "duplicates" / "shards"


def test_only_shards_with_other_verdicts_are_filtered_again(project: Project) -> None:
    near = {"MM_DEDUP_DOCUMENTS": "near"}
    project.shard("a", LONG)
    project.shard("b", LONG.replace("word100", "other"))
    project.shard("c", "something else")
    fine(project.run(**near))
    assert filtered(project) == {"a": WHOLE, "b": [], "c": WHOLE}
    explained = project.command("explain", "b").stdout
    assert "filtered by dedup_documents: copy of a, similarity 0.9" in explained
    ledger = Ledger(str(project.storage))
    rows = ledger.items("filtered_parquet", "b").select(["score", "threshold"]).to_pylist()
    assert {(0.9 < row["score"] < 1, row["threshold"]) for row in rows} == {(True, "near..0.8")}
    assert fine(project.run(**near)).startswith("nothing to do")

    project.shard("d", LONG.replace("word50", "other"))
    fine(project.run(*FILTERED, **near))
    assert filtered(project) == {"a": WHOLE, "b": [], "c": WHOLE, "d": []}
    assert project.made()["filtered_parquet"] == ["[a]", "[b]", "[c]", "d"]


def test_a_whole_run_sees_what_the_command_has_found(project: Project) -> None:
    settings = {"MM_DEDUP_IMAGES": "exact", "MM_MIN_WORDS": "2"}
    project.shard("a", "one")
    project.shard("b", "one two")
    fine(project.run(*FILTERED, **settings))
    assert filtered(project) == {"a": [], "b": WHOLE}  # what another filter drops has no copies

    refused = project.run(*FILTERED, MM_DEDUP_IMAGES="near")
    assert "images: 1 copy of 2 images" in refused.stdout
    assert filtered(project) == {"a": WHOLE, "b": WHOLE[:2]}


def test_a_shard_without_verdicts_fails_and_says_what_to_do(project: Project) -> None:
    project.shard("a")
    project.shard("b")
    fine(project.run("a", *FILTERED, MM_DEDUP_IMAGES="exact"))
    fine(project.run("--assets", "curated_parquet,image_scores,sample_scores", MM_DEDUP_IMAGES="exact"))
    told = project.command("duplicates", "--set", "dedup_images=exact").stdout
    assert "images: 1 copy of 2 images (50.0%)" in told
    near = project.command("duplicates", "--set", "dedup_images=near")
    assert (near.returncode, near.stdout) == (1, "")
    assert near.stderr.startswith("mm-assets: 2 shards without the score perceptual_hash; measure them:")
    assert project.command("duplicates").stdout.startswith("set MM_DEDUP_IMAGES or MM_DEDUP_DOCUMENTS")


def test_copies_and_what_stays_are_shown_side_by_side(project: Project) -> None:
    settings = {"MM_DEDUP_IMAGES": "exact", "MM_DEDUP_DOCUMENTS": "near"}
    project.shard("a", LONG)
    project.shard("b", f"{LONG} more")  # stays
    project.shard("c", "another text")
    fine(project.run(*FILTERED, **settings))

    image = fine(project.command("show", "c"))
    assert "    stays in its place: b [1], image 21x22 png 1.5 KB" in image.splitlines()
    page = fine(project.command("show", "c", "--html", "-"))
    pair = page.partition('<div class="pair">')[2].partition("</article>")[0]
    assert (pair.count("<img"), "stays in its place: b [1]" in pair) == (2, True)

    document = fine(project.command("show", "a")).splitlines()
    assert "stays in its place: b" in document
    page = fine(project.command("show", "a", "--html", "-"))
    assert page.partition('<div class="pair">')[2].count("<img") == 2

    preview = fine(project.command("preview", "--html", "-", **settings))
    pairs = [part.partition("</div>")[0] for part in preview.split('<div class="pair">')[1:]]
    assert [pair.count("<img") for pair in pairs] == [2, 2]
    table = fine(project.command("preview", **settings))
    assert "dedup_documents (dedup_documents=near)" in table
