"""Raw shards that are neither tars nor Parquet, and images elsewhere, through the graph."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.raw_shards import RawLocations
from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = pytest.mark.usefixtures("project")  # runs are in memory
PICTURES = [picture(number) for number in range(4)]


def lines(path: Path, *documents: Any) -> Path:
    """Write documents a line; text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{d if isinstance(d, str) else json.dumps(d)}\n" for d in documents).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def settings(folder: Path, raw: str, **others: str) -> dict[str, str]:
    places = {"MM_STORAGE": str(folder / "storage"), "DAGSTER_HOME": str(folder / "home")}
    return {"MM_RAW_SHARDS": raw, "MM_WORKERS": "1", **places, **others}


def rows(folder: Path, asset: str, shard: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "storage" / asset / f"{shard}.parquet").to_pylist()
    return found


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two shards of lines: one with a tar beside it and a bad line, one packed, of texts alone."""
    names = [f"{number}.{suffix}" for number, (suffix, _) in enumerate(PICTURES)]
    make_tar(
        tmp_path / "raw" / "a.images.tar",
        [(name, data) for name, (_, data) in zip(names[:2], PICTURES[:2], strict=True)],
    )
    lines(
        tmp_path / "raw" / "a.jsonl",
        {"sample_id": "one", "texts": ["first", None], "images": [None, names[0]], "lang": "en"},
        "{'no': json}",
        {"texts": [None, "second"], "images": [names[1], None], "lang": "de"},
    )
    lines(tmp_path / "raw" / "b.jsonl.gz", {"texts": ["third"], "images": [None], "lang": "en"})
    return tmp_path / "raw"


def test_a_run_over_a_folder_of_lines(tmp_path: Path, raw: Path) -> None:
    given = settings(tmp_path, str(raw))
    done = run("run", **given)
    assert done.returncode == 0, done.stderr
    made = rows(tmp_path, "filtered", "a")
    assert [(r["sample_id"], r["position"], r["modality"]) for r in made] == [
        ("one", -1, "metadata"),
        ("one", 0, "text"),
        ("one", 1, "image"),
        ("a/3", -1, "metadata"),
        ("a/3", 0, "image"),
        ("a/3", 1, "text"),
    ]
    assert {r["binary_content"] for r in made} - {None} == {data for _, data in PICTURES[:2]}
    assert [r["text_content"] for r in rows(tmp_path, "filtered", "b") if r["text_content"]] == ["third"]

    (record,) = rows(tmp_path, "quarantine", "a")
    assert (record["kind"], record["source_uri"], record["member"]) == ("bad_json", "a.jsonl", "line 2")
    assert record["raw"] == b"{'no': json}"

    told = run("explain", "one", **given)
    assert "shard a, from a.jsonl: line 1" in told.stdout
    shown = run("show", "a/3", **given)
    assert (shown.returncode, "second" in shown.stdout) == (0, True)
    verified = run("verify", raw / "b.jsonl.gz", tmp_path / "storage" / "curated" / "b.parquet", **given)
    assert verified.returncode == 0, verified.stdout + verified.stderr

    times = (tmp_path / "storage" / "curated" / "a.parquet").stat().st_mtime_ns
    assert run("run", **given).returncode == 0
    assert (tmp_path / "storage" / "curated" / "a.parquet").stat().st_mtime_ns == times
    make_tar(raw / "a.images.tar", [(f"{n}.{PICTURES[n][0]}", PICTURES[n + 2][1]) for n in range(2)])
    assert run("run", **given).returncode == 0
    again = {r["binary_content"] for r in rows(tmp_path, "filtered", "a")} - {None}
    assert again == {data for _, data in PICTURES[2:4]}

    (raw / "b.jsonl.gz").unlink()
    assert run("retire", **given).returncode == 0
    assert not (tmp_path / "storage" / "filtered" / "b.parquet").exists()


def test_bad_images_of_lines_are_quarantined_with_their_bytes(tmp_path: Path) -> None:
    """Also those in a tar that our lines name, whose name has a digest."""
    cut = PICTURES[1][1][:-30]
    suffix = PICTURES[1][0]
    make_tar(tmp_path / "raw" / "a.tar", [(f"x.{suffix}", cut), (f"y.{PICTURES[0][0]}", PICTURES[0][1])])
    documents = [
        {"sample_id": "bad", "texts": ["t"], "images": [None, f"x.{suffix}"]},
        {"sample_id": "good", "texts": ["t"], "images": [None, f"y.{PICTURES[0][0]}"]},
    ]
    lines(tmp_path / "raw" / "a.jsonl", *documents)
    given = settings(tmp_path, str(tmp_path / "raw" / "*.jsonl"), MM_MAX_LOSS="1", MM_DECODE_FRACTION="1")
    assert run("run", **given).returncode == 0
    (record,) = rows(tmp_path, "quarantine", "a")
    assert (record["source_uri"], record["raw"]) == ("a.tar", cut)


def test_a_damaged_tar_of_our_own_lines(tmp_path: Path) -> None:
    """The lines name it; its name has a digest."""
    names = [f"{number}.{PICTURES[number][0]}" for number in range(2)]
    make_tar(tmp_path / "a.tar", [(name, PICTURES[n][1]) for n, name in enumerate(names)])
    documents = [
        {"sample_id": f"s{n}", "texts": ["t"], "images": [None, name]} for n, name in enumerate(names)
    ]
    lines(tmp_path / "a.jsonl", *documents)
    made = run("convert", tmp_path / "a.jsonl", tmp_path / "raw", "--to", "jsonl")
    assert made.returncode == 0, made.stderr
    (tar,) = (tmp_path / "raw").glob("*.images.tar")
    tar.write_bytes(tar.read_bytes()[: 1024 + len(PICTURES[0][1]) // 512 * 512 + 512 + 512])
    given = settings(tmp_path, str(tmp_path / "raw"), MM_MAX_LOSS="1")
    assert run("run", **given).returncode == 0
    assert {r["sample_id"] for r in rows(tmp_path, "filtered", "a")} == {"s0"}
    found = {record["kind"]: record for record in rows(tmp_path, "quarantine", "a")}
    assert set(found) == {"truncated_tar", "missing_member"}
    assert found["truncated_tar"]["source_uri"] == tar.name
    assert PICTURES[1][1].startswith(found["truncated_tar"]["raw"][512:])


def test_a_cut_file_of_lines_keeps_what_is_whole(tmp_path: Path) -> None:
    documents = [{"sample_id": f"s{n}", "texts": [f"text {n} " * 50]} for n in range(200)]
    path = lines(tmp_path / "raw" / "a.jsonl.gz", *documents)
    path.write_bytes(path.read_bytes()[:-40])
    done = run("run", **settings(tmp_path, str(path)))
    assert done.returncode == 0, done.stderr
    kept = {r["sample_id"] for r in rows(tmp_path, "filtered", "a")}
    assert 0 < len(kept) < 200
    (record,) = rows(tmp_path, "quarantine", "a")
    assert record["kind"] == "truncated_tar"
    assert "cut" in record["message"]


def test_which_files_of_a_folder_are_read(tmp_path: Path) -> None:
    """Tars before Parquet before lines; a tar with the images of lines is none of its own."""
    raw = tmp_path / "raw"
    lines(raw / "a.jsonl", {"texts": ["x"]})
    lines(raw / "b.jsonl", {"texts": ["x"]})
    make_tar(raw / "a.images.tar", [])
    make_tar(raw / "b.0123456789abcdef.images.tar", [])
    found = RawLocations(str(raw)).shards()
    assert (list(found), found.warnings) == (["a", "b"], ())
    (raw / "c.parquet").touch()
    found = RawLocations(str(raw)).shards()
    assert list(found) == ["c"]
    assert found.warnings == (
        f"{raw}: 2 files of JSON lines beside Parquet files passed over, such as a.jsonl; "
        "name *.jsonl to read them",
    )
    make_tar(raw / "d.tar", [])
    found = RawLocations(str(raw)).shards()
    assert list(found) == ["d"]
    assert [line.partition(" passed")[0] for line in found.warnings] == [
        f"{raw}: 2 files of JSON lines beside tars",
        f"{raw}: 1 Parquet file beside tars",
    ]
    assert list(RawLocations(f"{raw}/*.jsonl").shards()) == ["a", "b"]


@pytest.mark.parametrize("name", ["a.images.tar", "a.tar"])
def test_the_tar_of_the_images_counts_in_the_version(tmp_path: Path, name: str) -> None:
    lines(tmp_path / "a.jsonl", {"texts": ["x"]})

    def version() -> str:
        return RawLocations(f"{tmp_path}/*.jsonl").shards()["a"].version

    versions = [version()]
    make_tar(tmp_path / name, [("x.png", b"1")])
    versions.append(version())
    make_tar(tmp_path / name, [("x.png", b"2")])
    versions.append(version())
    assert len(set(versions)) == 3
    (tmp_path / name).unlink()
    assert version() == versions[0]


def test_a_run_with_images_elsewhere(tmp_path: Path) -> None:
    """Documents name URLs that img2dataset has downloaded; two workers share the index."""
    (tmp_path / "raw").mkdir()
    urls = [f"http://example.org/{number}" for number in range(4)]
    for shard in range(2):
        documents = {
            "id": [f"good{shard}", f"bad{shard}", f"cut{shard}"],
            "images": [[urls[shard], None], [urls[3], None], [None, urls[2]]],
            "texts": [[None, "t"]] * 2 + [["t", None]],
        }
        pq.write_table(pa.table(documents), tmp_path / "raw" / f"{shard}.parquet")
    members: list[tuple[str, Any]] = []
    for number in range(3):
        suffix, image = PICTURES[number]
        members.append((f"00000000{number}.{suffix}", image[:-20] if number == 2 else image))
        members.append(
            (f"00000000{number}.json", {"url": urls[number], "key": str(number), "status": "success"})
        )
    make_tar(tmp_path / "images" / "00000.tar", members)
    failed = {
        "url": [urls[3]],
        "key": ["3"],
        "status": ["failed_to_download"],
        "error_message": ["HTTP Error 404"],
    }
    pq.write_table(pa.table(failed), tmp_path / "images" / "00000.parquet")
    given = settings(
        tmp_path,
        str(tmp_path / "raw"),
        MM_IMAGES_FROM=str(tmp_path / "images" / "*.tar"),
        MM_SAMPLE_ID_FIELD="id",
        MM_WORKERS="2",
        MM_MAX_LOSS="1",
        MM_DECODE_FRACTION="1",
    )
    done = run("run", **given)
    assert done.returncode == 0, done.stderr
    for shard in range(2):
        made = rows(tmp_path, "filtered", str(shard))
        assert {r["sample_id"] for r in made} == {f"good{shard}"}
        (image,) = [r for r in made if r["modality"] == "image"]
        assert image["binary_content"] == PICTURES[shard][1]
        assert json.loads(image["_source"]) == {"token": urls[shard]}
        assert json.loads(image["source_ref"])["member"] == f"00000000{shard}.{PICTURES[shard][0]}"
        lost = {r["sample_id"]: r for r in rows(tmp_path, "quarantine", str(shard))}
        assert set(lost) == {f"bad{shard}", f"cut{shard}"}
        reason = f"the download failed: HTTP Error 404 (as img2dataset notes of {urls[3]!r})"
        assert lost[f"bad{shard}"]["message"] == reason
        assert lost[f"cut{shard}"]["kind"] == "undecodable_image"
    assert "t" in run("show", "good0", **given).stdout
    source = tmp_path / "raw" / "0.parquet"
    flags = (
        "--images-from",
        tmp_path / "images",
        "--sample-id-field",
        "id",
        "--on-materialize-error",
        "drop_sample",
    )
    made_alone = run("convert", source, tmp_path / "out", "--to", "webdataset", *flags, "--max-loss", "1")
    assert "1 sample, 1 image" in made_alone.stdout, made_alone.stderr
    given["MM_IMAGES_FROM"] = str(tmp_path / "none")
    failing = run("run", **given)
    assert failing.returncode == 1
    assert f"MM_IMAGES_FROM: {tmp_path}/none: no such file" in failing.stdout


def test_a_run_over_folders_of_images(tmp_path: Path) -> None:
    """With metadata, and with texts beside the images; what is wrong is quarantined with its bytes."""
    photos = tmp_path / "photos"
    suffix, image = PICTURES[1]
    lines(
        photos / "set" / "metadata.jsonl",
        {"file_name": f"a.{suffix}", "text": "one", "stars": 5},
        {"file_name": "none.png", "text": "two", "stars": 4},
        "{bad",
        {"file_name": f"cut.{suffix}", "text": "three", "stars": 3},
    )
    (photos / "set" / f"a.{suffix}").write_bytes(image)
    (photos / "set" / f"cut.{suffix}").write_bytes(image[:-30])
    (photos / "set" / f"extra.{suffix}").write_bytes(image)
    (photos / "loose").mkdir()
    (photos / "loose" / f"b.{suffix}").write_bytes(image)
    (photos / "loose" / "b.txt").write_text("of b")
    given = settings(tmp_path, str(photos), MM_MAX_LOSS="1", MM_DECODE_FRACTION="1")
    done = run("run", **given)
    assert done.returncode == 0, done.stderr
    made = rows(tmp_path, "filtered", "set")
    assert [(r["sample_id"], r["text_content"], r["binary_content"]) for r in made] == [
        ("set/1", None, None),
        ("set/1", "one", None),
        ("set/1", None, image),
    ]
    assert made[0]["stars"] == 5
    assert {r["sample_id"] for r in rows(tmp_path, "filtered", "loose")} == {"loose/b"}
    found = {r["sample_id"]: r for r in rows(tmp_path, "quarantine", "set")}
    assert {key: (r["kind"], r["source_uri"], r["member"]) for key, r in found.items()} == {
        "set/2": ("missing_member", "set/metadata.jsonl", "none.png"),
        "set/3": ("bad_json", "set/metadata.jsonl", "line 3"),
        "set/4": ("undecodable_image", f"set/cut.{suffix}", None),
    }
    assert found["set/3"]["raw"] == b"{bad"
    assert found["set/4"]["raw"] == image[:-30]
    assert json.loads(found["set/2"]["raw"])["text"] == "two"
    assert "shard set, from set/metadata.jsonl: line 1" in run("explain", "set/1", **given).stdout
    before = (tmp_path / "storage" / "curated" / "loose.parquet").stat().st_mtime_ns
    lines(photos / "set" / "metadata.jsonl", {"file_name": f"extra.{suffix}", "text": "new", "stars": 1})
    assert run("run", **given).returncode == 0
    assert [r["text_content"] for r in rows(tmp_path, "filtered", "set")] == [None, "new", None]
    assert (tmp_path / "storage" / "curated" / "loose.parquet").stat().st_mtime_ns == before


def test_commands_on_zips_and_folders(tmp_path: Path) -> None:
    """A run over zips, and what inspect, convert, show and verify make of the same."""
    suffix, image = PICTURES[1]
    raw = tmp_path / "raw"
    raw.mkdir()

    def pack(second: bytes) -> None:
        with zipfile.ZipFile(raw / "z.zip", "w") as packed:
            packed.writestr("data/metadata.csv", f"file_name,text\na.{suffix},one\nb.{suffix},two\n")
            packed.writestr(f"data/a.{suffix}", image)
            packed.writestr(f"data/b.{suffix}", second)

    pack(image[:-30])
    given = settings(tmp_path, str(raw), MM_MAX_LOSS="1", MM_DECODE_FRACTION="1")
    done = run("run", **given)
    assert done.returncode == 0, done.stderr
    assert [r["text_content"] for r in rows(tmp_path, "filtered", "z")] == [None, "one", None]
    (record,) = rows(tmp_path, "quarantine", "z")
    assert (record["sample_id"], record["member"], record["raw"]) == ("z/3", f"data/b.{suffix}", image[:-30])
    pack(image)
    seen = run("inspect", raw / "z.zip", **given)
    assert "2 metadata, 2 text, 2 image rows; 0 with an error" in seen.stdout, seen.stderr
    made = run("convert", raw, tmp_path / "out", "--to", "webdataset", "--on-materialize-error", "warn")
    assert made.returncode == 0, made.stderr
    verified = run("verify", raw / "z.zip", tmp_path / "out" / "z.tar", **given)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    shown = run("show", "z/2", raw / "z.zip", **given)
    assert "one" in shown.stdout, shown.stderr

    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / f"a.{suffix}").write_bytes(image)
    (photos / "a.caption").write_text("of a")
    for source in (photos, f"folder={photos}"):
        seen = run("inspect", source)
        assert "1 metadata, 1 text, 1 image rows" in seen.stdout, seen.stderr
    made = run("convert", photos, tmp_path / "of_folder", "--to", "parquet")
    assert "1 sample, 1 image, 1 text" in made.stdout, made.stderr
    verified = run("verify", photos, tmp_path / "of_folder")
    assert verified.returncode == 0, verified.stdout + verified.stderr
