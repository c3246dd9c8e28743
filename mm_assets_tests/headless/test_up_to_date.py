"""`mm-assets run` where there is nothing to do: it starts no run, and notices all that a run would."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress

import dagster as dg
import lance
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.proof import ProofStore
from mm_assets.storage import small_files, stamps
from mm_assets_tests.cli.commands import REPOSITORY, environment, fine, run_process
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.headless.conftest import ASSETS, Project


def test_it_starts_no_run_and_prints_the_same(project: Project) -> None:
    project.shards("ab")
    document = {"texts": ["x", None], "images": [None, "c.png"]}
    make_tar(project.raw / "c.tar", [("c.json", document), ("c.png", picture(0)[1]), ("d.json", b"{")])
    first = project.run(MM_MAX_LOSS="1")
    states = {path: path.stat().st_mtime_ns for path in project.storage.rglob("*")}
    second = project.run(MM_MAX_LOSS="1")
    assert (first.returncode, second.returncode) == (0, 0)
    assert project.runs() == 1
    assert {path: path.stat().st_mtime_ns for path in project.storage.rglob("*")} == states
    before, after = (done.stdout.splitlines() for done in (first, second))
    assert after[0] == "nothing to do: 3 shards up to date, as published and proven"
    problems = [line for line in after if line.startswith("shard ")]
    assert problems == [
        "shard 'c': raw_shards.integrity: 1 unreadable; quarantine.empty: not empty: 1 bad_json"
    ]
    assert [line for line in before if line.startswith("shard ")] == problems
    table = {line.split()[0]: line.split()[1:3] for line in after if line.split()[0] in ASSETS}
    assert table == {asset: ["3", "3"] for asset in ASSETS}
    assert (
        after[-3]
        == before[-3]
        == ("proven: every item of 3 shards is in 5 outputs as it was written (proof/proof.json)")
    )
    named = "checks failed: 2 (1 empty, 1 integrity, see above"
    assert before[-2].endswith(f"{named})")
    assert after[-2].endswith(f"{named}; unchanged shards were not checked again)")


def test_damage_is_told_with_its_place_in_each_run(project: Project) -> None:
    project.shards("ab")
    whole = project.raw / "b.tar"
    whole.write_bytes(whole.read_bytes()[:1100])
    variables = {"MM_MAX_LOSS": "1"}
    first, second = (fine(project.run(**variables)).splitlines() for _ in range(2))
    project.shards("c")
    third = fine(project.run(**variables)).splitlines()
    for told in (first, second, third):
        (line,) = (line for line in told if line.startswith("shard "))
        assert line.startswith("shard 'b': raw_shards.integrity: 1 damage")
        assert "; damage: b.tar: byte " in line
        assert "; quarantine.empty: not empty: 1 " in line
        (quarantine,) = (line.split() for line in told if line.startswith("quarantine "))
        # asset, partitions, unchanged, images, quarantined, MB, seconds, where: no samples, nothing filtered
        assert len(quarantine) == 8
        assert quarantine[4] == "2"


def _drop_rows(project: Project) -> None:
    lance.dataset(project.storage / "lance" / "items.lance").delete("sample_id = 'a'")


def _remove(pattern: str) -> Callable[[Project], None]:
    def remove(project: Project) -> None:
        (path,) = project.storage.glob(pattern)
        path.unlink() if path.is_file() else shutil.rmtree(path)

    return remove


def _cut(project: Project) -> None:
    path = project.storage / "filtered" / "a.parquet"
    path.write_bytes(path.read_bytes()[:-1])


GONE = {
    "curated": (_remove("curated/a.parquet"), "curated_parquet"),
    "scores": (_remove("scores/a.parquet"), "image_scores"),
    "sample scores": (_remove("sample_scores/a.parquet"), "sample_scores"),
    "filtered": (_remove("filtered/a.parquet"), "filtered_parquet"),
    "cut": (_cut, "filtered_parquet"),
    "tar": (_remove("webdataset/a.tar"), "final_tars"),
    "cache": (_remove("arrow_cache/a"), "arrow_cache"),
    "rows": (_drop_rows, "lance_table"),
    "table": (_remove("lance/items.lance"), "lance_table"),
    "account": (_remove("ledger/accounts/curated_parquet/a.parquet"), "curated_parquet"),
    "account of tars": (_remove("ledger/accounts/final_tars/a.parquet"), "final_tars"),
}


def _flip(path: str) -> Callable[[Project], None]:
    def flip(project: Project) -> None:
        file = project.storage / path
        found, data = file.stat(), bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        with file.open("r+b") as opened:
            opened.write(data)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))

    return flip


def _appear(project: Project) -> None:
    (project.storage / "quarantine").mkdir(exist_ok=True)
    (project.storage / "quarantine" / "a.parquet").write_bytes(b"of nobody")


def _exchange(project: Project) -> None:
    folder = project.storage / "ledger" / "accounts" / "filtered_parquet"
    (folder / "a.parquet").write_bytes((folder / "b.parquet").read_bytes())


DAMAGED = {
    **{asset: (_flip(f"ledger/accounts/{asset}/a.parquet"), asset) for asset in ASSETS},
    "flipped scores": (_flip("scores/a.parquet"), "image_scores"),
    "flipped sample scores": (_flip("sample_scores/a.parquet"), "sample_scores"),
    "quarantine of nothing": (_appear, "quarantine"),
    "account of another": (_exchange, "filtered_parquet"),
}


def _look(project: Project) -> None:
    """Look at all accounts: what is found whole is not read again while its stamps stay."""
    found = [Ledger(str(project.storage)).whole_records(asset, "ab").keys() for asset in ASSETS]
    assert found == [{"a", "b"}] * len(ASSETS)
    kept = {path.parent.name for path in project.storage.glob("ledger/index/accounts/*/*.parquet")}
    assert kept == {*ASSETS}


def test_what_somebody_removed_is_named_and_made_again(
    made: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thing by itself is named by a dry run; all of them are made by one run."""
    monkeypatch.setattr(small_files, "_FEWEST_RECALLED", 0)
    monkeypatch.setattr(stamps, "_SETTLED_NS", 0)
    whole = made.folder / "whole"
    shutil.copytree(made.storage, whole)
    for what, (remove, asset) in {**GONE, **DAMAGED}.items():
        _look(made)
        remove(made)
        shards, named = ("2 shards", "(a, b)") if what == "table" else ("1 shard", "(a)")
        stale, taken = made.plan()
        assert stale.startswith(f"stale: not as it was published: {shards} in {asset}"), what
        assert stale.endswith(named), what
        assert taken.startswith("2 of 2 shards would be taken in 1 run"), what
        shutil.rmtree(made.storage)
        shutil.copytree(whole, made.storage)
    _look(made)
    for remove, _ in GONE.values():
        with suppress(ValueError, FileNotFoundError):  # what has gone with another
            remove(made)
    assert fine(made.run()).startswith("materializing all assets ")
    landed = made.made()
    assert [asset for _, asset in GONE.values() if "a" not in landed[asset]] == []
    assert fine(made.run()).startswith("nothing to do: 2 shards up to date")


DERIVED = ["webdataset/a.tar.idx", "webdataset/index.json", "webdataset/README.md", "proof/proof.json"]


def test_what_is_derived_is_repaired_without_a_run(project: Project) -> None:
    project.shards("ab")
    fine(project.run())
    for name in DERIVED:
        path = project.storage / name
        before = path.read_bytes()
        path.unlink()
        assert fine(project.run()).startswith("nothing to do"), name
        assert path.read_bytes() == before, name


def test_texts_that_are_not_taken_are_told_of_in_each_run(project: Project) -> None:
    """Also where a run makes another shard, and starts none."""
    line = "no text was taken from 1 of {} shards; columns that look like text: body; see docs/raw_shards.md"
    project.shard("b")
    document = {"images": ["a.png"], "body": ["a text"]}
    make_tar(project.raw / "a.tar", [("a.json", document), ("a.png", picture(0)[1])])
    first = fine(project.run())
    project.shard("c")
    second, third = fine(project.run()), fine(project.run())
    assert third.startswith("nothing to do")
    for told, of in ((first, 2), (second, 3), (third, 3)):
        assert line.format(of) in told
        assert "; checks failed: 1 (1 content_taken, see above" in told


def test_a_lost_proof_is_made_again(made: Project) -> None:
    _remove("proof/final_tars")(made)
    assert "proven: every item of 2 shards" in fine(made.run())
    assert ProofStore(str(made.storage)).partitions("final_tars") == ["a", "b"]


def test_other_raw_shards_and_settings_are_noticed(project: Project) -> None:
    project.shards("a")
    fine(project.run())
    for change, settings in (
        (lambda: project.shard("b"), {}),
        (lambda: project.shard("a", "another text"), {}),
        (lambda: None, {"MM_MIN_ASPECT_RATIO": "1"}),
        (lambda: (project.raw / "b.tar").unlink(), {"MM_MIN_ASPECT_RATIO": "1"}),
    ):
        before = project.runs()
        change()
        assert project.run(**settings).stdout.startswith("materializing all assets ")
        assert project.runs() == before + 1


def test_more_was_lost_than_is_allowed_now(project: Project) -> None:
    make_tar(project.raw / "a.tar", [("s.json", {"texts": ["x"]}), ("t.json", b"{")])
    assert project.run(MM_MAX_LOSS="0.5").returncode == 0
    for _ in range(2):
        done = project.run(MM_MAX_LOSS="0.1")
        assert done.returncode == 1
        assert not done.stdout.startswith("nothing to do")


def test_what_a_retired_shard_had_decided_is_asked_again(project: Project) -> None:
    for name in "ab":
        documents = [("same.json", {"texts": [name]}), (f"{name}.json", {"texts": [name]})]
        make_tar(project.raw / f"{name}.tar", documents)

    def begins() -> str:
        return project.run(MM_MAX_LOSS="1").stdout.partition(" ")[0]

    assert [begins(), begins()] == ["materializing", "nothing"]
    (project.raw / "a.tar").unlink()
    assert [begins(), begins()] == ["materializing", "nothing"]
    fine(project.command("retire", "a"))
    assert [begins(), project.made()["curated_parquet"], begins()] == ["materializing", ["b"], "nothing"]


def test_a_run_of_some_shards_in_any_order_with_changes_damage_and_runs_of_all(made: Project) -> None:
    """A run of all starts one if something has changed since the last, and not because some were made."""
    texts = {"a": "some text", "b": "some text"}

    def change(name: str) -> None:
        texts[name] += " and more"
        made.shard(name, texts[name])

    def damage() -> None:
        _flip("ledger/accounts/filtered_parquet/b.parquet")(made)

    def part() -> None:
        assert fine(made.run("a")).startswith("materializing all assets ")

    steps: dict[str, Callable[[], None]] = {
        "a": lambda: change("a"),
        "b": lambda: change("b"),
        "d": damage,
        "p": part,
    }
    pending: set[str] = set()  # shards with something to do
    for number, step in enumerate("p.ap.p.bp.pb.dp.pd.a.pap.."):
        if step != ".":
            steps[step]()
            pending |= {"a": {"a"}, "b": {"b"}, "d": {"b"}}.get(step, set())
            pending -= {"a"} if step == "p" else set()
            continue
        before = made.runs()
        told = fine(made.run())
        assert told.startswith("materializing" if pending else "nothing to do: 2 shards"), number
        assert made.runs() == before + bool(pending), number
        if pending:
            assert made.made()["filtered_parquet"] == [
                *(f"[{key}]" for key in "ab" if key not in pending),
                *sorted(pending),
            ], number
        assert told.splitlines()[-3].startswith("proven: every item of 2 shards is in 5 outputs"), number
        pending.clear()
        for key, text in texts.items():
            rows = pq.read_table(made.storage / "filtered" / f"{key}.parquet")["text_content"].to_pylist()
            assert text in rows, number


def test_shards_that_came_or_went_beside_a_run_of_some(made: Project) -> None:
    made.shard("c")
    fine(made.run("--missing"))
    assert fine(made.run()).startswith("nothing to do: 3 shards")
    fine(made.run("a"))
    made.shard("d")
    assert fine(made.run()).startswith("materializing all assets ")
    fine(made.run("a"))
    (made.raw / "d.tar").unlink()
    assert made.run().stdout.startswith("materializing all assets ")
    assert made.run("a").returncode == 0
    made.broken("c")
    assert made.run().returncode == 1
    assert made.run().stdout.startswith("materializing all assets ")


def test_what_a_run_of_some_shards_decides_of_the_others(project: Project) -> None:
    """Nobody is due, and yet others are made: the sample that another has given up, the wider type."""

    def write(name: str, **documents: object) -> None:
        made_of = {f"{sample}.json": {"texts": [name], "n": value} for sample, value in documents.items()}
        make_tar(project.raw / f"{name}.tar", list(made_of.items()))

    def begins(*shards: str) -> str:
        return project.run(*shards, MM_MAX_LOSS="1").stdout.partition(" ")[0]

    write("a", same=1, a=1)
    write("b", same=1, b=1)
    assert [begins(), begins(), begins("b"), begins()] == [*["materializing", "nothing"] * 2]
    write("a", a=1)
    assert [begins("a"), begins()] == ["materializing"] * 2
    assert project.made()["curated_parquet"] == ["[a]", "b"]
    rows = pq.read_table(project.storage / "curated" / "b.parquet")["sample_id"].to_pylist()
    assert {*rows} == {"same", "b"}
    write("b", b=1, a=1)
    assert [begins("b"), begins()] == ["materializing", "nothing"]
    write("a", a=1.5)
    assert [begins("a"), begins()] == ["materializing"] * 2
    assert begins() == "nothing"


def test_a_survey_that_is_gone_is_made_by_a_run(made: Project) -> None:
    fine(made.run("a"))
    _remove("ledger/raw_shards/b.parquet")(made)
    assert fine(made.run()).startswith("materializing all assets ")
    assert (made.storage / "ledger" / "raw_shards" / "b.parquet").exists()
    assert fine(made.run()).startswith("nothing to do")


def test_after_observations_were_wiped_a_run_makes_them(made: Project) -> None:
    fine(made.run("a"))
    with made.instance() as instance:
        instance.wipe_assets([dg.AssetKey("raw_shards")])
    assert fine(made.run()).startswith("materializing all assets ")
    with made.instance() as instance:
        observed = instance.fetch_observations(dg.AssetKey("raw_shards"), limit=9).records
    assert {record.partition_key for record in observed} == {"a", "b"}
    assert fine(made.run()).startswith("nothing to do")


def test_filters_that_compare_with_all_shards_ask_a_run(made: Project) -> None:
    settings = {"MM_DEDUP_IMAGES": "exact"}
    assert fine(made.run(**settings)).startswith("materializing all assets ")
    assert fine(made.run(**settings)).startswith("nothing to do")
    fine(made.run("a", **settings))
    assert "first pass: scores of all shards" in fine(made.run(**settings))
    assert fine(made.run(**settings)).startswith("nothing to do")


def test_a_new_home_has_a_run_of_its_own(project_on_disk: Project) -> None:
    project_on_disk.shards("a")
    for home in ("home", "other"):
        told = [fine(project_on_disk.run(DAGSTER_HOME=str(project_on_disk.folder / home))) for _ in range(2)]
        assert [line.split(maxsplit=1)[0] for line in told] == ["materializing", "nothing"]


def test_shards_that_others_made_in_the_storage_are_noticed(project_on_disk: Project) -> None:
    """Both filters drop the same image: the outputs are equal, the reasons in the ledger are not."""
    settings = {"home": {"MM_MIN_ASPECT_RATIO": "9"}, "other": {"MM_MIN_IMAGE_SIDE": "5000"}}
    project_on_disk.shards("a")

    def begins(home: str) -> str:
        place = str(project_on_disk.folder / home)
        return fine(project_on_disk.run(DAGSTER_HOME=place, **settings[home])).partition(" ")[0]

    assert [begins(home) for home in ("home", "home", "other", "home", "home")] == [
        *("materializing", "nothing"),
        *("materializing", "materializing", "nothing"),
    ]


def test_what_cannot_be_read_is_for_the_run(project: Project) -> None:
    project.shards("a")
    fine(project.run())
    account = project.storage / "ledger" / "accounts" / "final_tars" / "a.parquet"
    account.unlink()
    account.mkdir()
    done = project.run()
    assert done.stdout.startswith("materializing all assets ")
    assert f"step final_tars failed: {account}: a folder, not a file" in done.stdout


def test_a_run_is_the_sign_of_life_that_freshness_waits_for(project: Project) -> None:
    project.shards("a")
    for _ in range(2):
        assert fine(project.run(MM_FRESH_WITHIN="1d")).startswith("materializing all assets ")


CHECKS = """
import os
from mm_assets.graph import Check, ShardCheck

def always_fails(shard):
    return Check("always_fails", False)

CHECKS = {
    "filtered_parquet": [ShardCheck("always_fails", always_fails, blocking=os.environ["BLOCKS"] == "yes")]
}
"""


def test_a_check_that_keeps_shards_back_now_is_asked(project_on_disk: Project) -> None:
    """In processes of their own: the checks of a code location are those of its modules."""
    project = project_on_disk
    (project.folder / "checks_of_mine.py").write_text(CHECKS)
    project.shards("a")

    def run(blocks: str) -> subprocess.CompletedProcess[str]:
        places = {"MM_RAW_SHARDS": project.raw, "MM_STORAGE": project.storage, "DAGSTER_HOME": project.home}
        given = {"MM_PLUGINS": "checks_of_mine", "BLOCKS": blocks, "MM_WORKERS": "1"}
        path = f"{project.folder}:{REPOSITORY}"
        changes = {name: str(value) for name, value in {**places, **given, "PYTHONPATH": path}.items()}
        return run_process("run", env=environment(**changes))

    assert run("no").returncode == 0
    done = run("yes")
    assert done.returncode == 1
    assert "blocking check failed: always_fails" in done.stdout
