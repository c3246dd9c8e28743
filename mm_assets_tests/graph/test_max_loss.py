"""What is not recognised is no success: a shard of which too much would be lost fails, in one line that says
what to do.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.formats.hostile.pictures import photograph
from mm_assets_tests.graph.deployment import CURATED, Deployment, materialized, write_tar

Deploy = Callable[..., Deployment]

PNG = photograph("PNG")


def _documents(
    prefix: str, count: int = 4, texts: str = "texts", images: str = "images", **more: Any
) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for n in range(count):
        key = f"{prefix}{n:05d}"
        members[f"{key}.json"] = json.dumps(
            {texts: [f"text {key}", None], images: [None, f"{key}.png"], **more}
        ).encode()
        members[f"{key}.png"] = PNG
    return members


def _outcome(
    deployment: Deployment, assets: list[str] | None = CURATED
) -> tuple[bool, list[str], dict[str, str]]:
    """Whether the run succeeded, the curated shards that landed, and the error of each that did not."""
    result = deployment.run(assets=assets)
    errors: dict[str, str] = {}
    for record in deployment.instance.get_records_for_run(result.run_id).records:
        if (
            told := re.match(r"shard '([^']*)' of curated_parquet: (.*)", record.event_log_entry.user_message)
        ) is not None:
            errors[told[1]] = told[2]
    return result.success, sorted(materialized(result).get("curated_parquet", {})), errors


def test_lists_of_other_names(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", _documents("x", texts="text_list", images="image_list", lang="en"))
    write_tar(tmp_path / "raw" / "b.tar", _documents("y"))
    deployment = deploy()
    success, landed, errors = _outcome(deployment)
    assert (success, landed) == (False, ["b"])
    assert errors == {
        "a": "100% of it would be lost, and MM_MAX_LOSS is 0.5: 4 members of the tar, 4 of them images, "
        "are referenced by no sample; "
        "no sample has a text or an image; fields seen: text_list, image_list, lang; check "
        "MM_TEXTS_FIELD, MM_IMAGES_FIELD"
    }
    fixed = deploy(MM_TEXTS_FIELD="text_list", MM_IMAGES_FIELD="image_list")
    assert _outcome(fixed)[:2] == (False, ["a"])
    assert (
        pq.read_table(tmp_path / "storage" / "curated" / "a.parquet")["modality"].to_pylist().count("image")
        == 4
    )


@pytest.mark.parametrize("most", ["0.5", "1"])
def test_a_garbage_tar_among_good_ones(tmp_path: Path, deploy: Deploy, most: str) -> None:
    write_tar(tmp_path / "raw" / "good.tar", _documents("g"))
    (tmp_path / "raw" / "junk.tar").write_bytes(b"<html>503 Service Unavailable</html>" * 40)
    success, landed, errors = _outcome(deploy(MM_MAX_LOSS=most))
    if most == "1":
        assert (success, landed, errors) == (True, ["good", "junk"], {})
        return
    assert (success, landed) == (False, ["good"])
    assert errors["junk"].startswith(
        "100% of it would be lost, and MM_MAX_LOSS is 0.5: 1440 of 1440 bytes are of no tar member"
    )
    assert not (tmp_path / "storage" / "curated" / "junk.parquet").exists()


def test_members_that_nobody_names(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {f"{n}.bin": b"x" for n in range(3)})
    success, landed, errors = _outcome(deploy())
    assert (success, landed) == (False, [])
    assert (
        "3 members of the tar, 0 of them images, are referenced by no sample; 0 samples can be read; "
        "fields seen: none; suffixes seen: bin; check MM_JSON_EXTENSIONS, MM_IMAGE_EXTENSIONS" in errors["a"]
    )


def _stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """When each file was last written, and the file that has its name now."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


def test_an_empty_tar_is_an_empty_shard(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {})
    assert _outcome(deploy(), None)[:2] == (True, ["a"])
    before = _stamps(tmp_path / "storage")
    assert before and _outcome(deploy(), None)[:2] == (True, ["a"])
    assert _stamps(tmp_path / "storage") == before


def test_ids_that_start_anew_in_each_shard(tmp_path: Path, deploy: Deploy) -> None:
    for name in ("a", "b", "c"):
        write_tar(tmp_path / "raw" / f"{name}.tar", _documents(""))
    success, landed, errors = _outcome(deploy())
    assert (success, landed) == (False, ["a"])
    hint = "remove a copy; if ids start anew in each shard, set MM_SAMPLE_ID_PREFIX=shard"
    line = (
        f"100% of it would be lost, and MM_MAX_LOSS is 0.5: 4 samples have an id that is taken "
        f"('00000' by shard 'a'): {hint}"
    )
    assert errors == {"b": line, "c": line}
    assert _outcome(deploy(MM_SAMPLE_ID_PREFIX="shard"))[:2] == (True, ["a", "b", "c"])
    ids = pq.read_table(tmp_path / "storage" / "curated" / "b.parquet")["sample_id"].unique().to_pylist()
    assert ids == [f"b/{n:05d}" for n in range(4)]


def test_a_shard_that_is_not_taken_has_no_claim_on_ids(tmp_path: Path, deploy: Deploy) -> None:
    unreferenced = {f"stray-{n}.png": PNG for n in range(30)}
    write_tar(tmp_path / "raw" / "a.tar", {**_documents(""), **unreferenced})
    write_tar(tmp_path / "raw" / "b.tar", _documents(""))
    success, landed, errors = _outcome(deploy())
    assert (success, landed, list(errors)) == (False, ["b"], ["a"])
    assert len(pq.read_table(tmp_path / "storage" / "curated" / "b.parquet")) == 12


@pytest.mark.parametrize(("cut", "lands"), [(2, True), (3, False)])
def test_images_that_cannot_be_decoded_are_found_when_they_are_read(
    tmp_path: Path, deploy: Deploy, cut: int, lands: bool
) -> None:
    """Of 4 samples of 3 items; with its picture a whole sample goes. Half may be lost, not more."""
    members = _documents("s")
    for n in range(cut):
        members[f"s{n:05d}.png"] = PNG[: len(PNG) // 2]
    write_tar(tmp_path / "raw" / "a.tar", members)
    success, landed, errors = _outcome(deploy())
    assert (success, landed) == (lands, ["a"] if lands else [])
    if not lands:
        assert errors["a"].startswith(
            "75% of it would be lost, and MM_MAX_LOSS is 0.5: undecodable_image 3: unreadable image: cut or "
        )
        assert "; incomplete_sample 6: its sample has an error" in errors["a"]


def test_what_landed_before_stays(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", _documents("s"))
    deployment = deploy()
    assert deployment.run(assets=CURATED).success
    before = (tmp_path / "storage" / "curated" / "a.parquet").read_bytes()
    write_tar(tmp_path / "raw" / "a.tar", _documents("s", texts="t", images="i"))
    success, landed, errors = _outcome(deployment)
    assert (success, landed, list(errors)) == (False, [], ["a"])
    assert (tmp_path / "storage" / "curated" / "a.parquet").read_bytes() == before


def test_images_that_no_sample_names_fail_their_shard(tmp_path: Path, deploy: Deploy) -> None:
    """Half of what is there is recognized, the texts; not one of the images is."""
    write_tar(tmp_path / "raw" / "a.tar", _documents("x", images="image_list", lang="en"))
    write_tar(tmp_path / "raw" / "b.tar", _documents("y"))
    success, landed, errors = _outcome(deploy())
    assert (success, landed) == (False, ["b"])
    assert (
        "are referenced by no sample; no sample has an image; fields seen: image_list, lang; check "
        "MM_TEXTS_FIELD" in errors["a"]
    )


def test_a_file_of_which_nothing_can_be_read_fails(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "good.tar", _documents("g"))
    (tmp_path / "raw" / "none.tar").touch()
    success, landed, errors = _outcome(deploy())
    assert (success, landed) == (False, ["good"])
    assert "nothing of it can be read: none.tar: byte 0: the file is empty" in errors["none"]


def test_items_that_are_kept_with_an_error_are_lost_too(tmp_path: Path, deploy: Deploy) -> None:
    payload = {"texts": ["t", None, None, None], "images": [None, "1.png", "2.png", "3.png"]}
    write_tar(tmp_path / "raw" / "a.tar", {"d.json": json.dumps(payload).encode()})
    write_tar(tmp_path / "raw" / "b.tar", _documents("y"))
    success, landed, errors = _outcome(deploy(MM_ON_MATERIALIZE_ERROR="warn"))
    assert (success, landed) == (False, ["b"])
    assert errors["a"].startswith(
        "60% of it would be lost, and MM_MAX_LOSS is 0.5: missing_member 3: missing member '1.png'"
    )
