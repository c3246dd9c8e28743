"""What commands advise about data that they cannot take, or take otherwise than users may expect."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from mm_assets.formats.names import RAW_SUFFIXES
from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.parquet_of_others import PICTURES, documents, image, interleaved
from mm_assets_tests.formats.raw_tars import make_tar

NFC, NFD = (unicodedata.normalize(form, "\u00e9.png") for form in ("NFC", "NFD"))
URL = "https://example.org/a.jpg"


def tga() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (24, 24), (1, 2, 3)).save(file, "TGA")
    return file.getvalue()


def document(folder: Path, name: str, *members: tuple[str, bytes]) -> None:
    make_tar(folder / "a.tar", [("a.json", {"texts": ["x", None], "images": [None, name]}), *members])


def hive(folder: Path) -> None:
    for year in ("2023", "2024"):
        documents(folder / f"year={year}" / "p.parquet", interleaved([["x", None]], [[None, image(0)]]))


def other_fields(folder: Path, suffix: str = "png") -> None:
    make_tar(folder / "a.tar", [("a.json", {"body": ["hello"]}), (f"a.1.{suffix}", PICTURES[0])])


def extra_members(folder: Path) -> None:
    make_tar(folder / "a.tar", [("a.json", {"texts": ["x"]}), *((f"{n}.npy", b"n") for n in range(9))])


CHECK_FIELDS = "check MM_TEXTS_FIELD, MM_IMAGES_FIELD"


@pytest.mark.parametrize(
    ("make", "inspected", "converted", "says"),
    [
        pytest.param(
            lambda folder: document(folder, NFC, (NFD, PICTURES[0])),
            0,
            1,
            r"missing member 'é.png': the tar has 'e\u0301.png', which looks alike, and not '\xe9.png'",
            id="NFC names NFD",
        ),
        pytest.param(
            lambda folder: document(folder, "b.png", ("a.png", PICTURES[0])),
            0,
            1,
            "missing member 'b.png'\n",
            id="a plain name",
        ),
        pytest.param(
            lambda folder: document(folder, "a.tga", ("a.tga", tga())),
            0,
            1,
            "TGA images are not supported",
            id="TGA",
        ),
        pytest.param(
            lambda folder: documents(
                folder / "a.parquet",
                {
                    "images": (pa.list_(pa.string()), [[URL, None]]),
                    "texts": (pa.list_(pa.string()), [[None, "x"]]),
                },
            ),
            0,
            1,
            f"'{URL}': a URL, and nothing is fetched: download the images first, see docs/raw_shards.md",
            id="URLs",
        ),
        pytest.param(hive, 0, 0, "/year=2023: such names of folders become no columns", id="Hive"),
        pytest.param(other_fields, 1, 1, CHECK_FIELDS, id="other fields"),
        pytest.param(
            extra_members, 0, 1, "raise MM_MAX_LOSS if these members may be left out", id="extra members"
        ),
        pytest.param(
            lambda folder: make_tar(folder / "a.tar", [("a.dat", b"x")]),
            1,
            1,
            "suffixes seen: dat; check MM_JSON_EXTENSIONS, MM_IMAGE_EXTENSIONS",
            id="no sample",
        ),
    ],
)
def test_advice_on_data(
    tmp_path: Path, make: Callable[[Path], object], inspected: int, converted: int, says: str
) -> None:
    """`inspect` says what `convert` does, or that it would refuse."""
    make(tmp_path / "raw")
    done = run("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet")
    assert done.returncode == converted
    assert says in done.stderr
    seen = run("inspect", tmp_path / "raw")
    assert seen.returncode == inspected
    told = seen.stdout + seen.stderr
    assert (
        (says in told)
        or (converted and "convert would refuse the rows with an error" in told)
        or (
            "TGA" in says  # images are not looked at
        )
    )


def test_advice_that_cannot_help_is_not_given(tmp_path: Path) -> None:
    extra_members(tmp_path / "raw")
    done = run("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet")
    assert "MM_TEXTS_FIELD" not in done.stderr
    assert "MM_JSON_EXTENSIONS" not in done.stderr


LISTS = "none of these fields is texts or images of a known layout: see docs/raw_shards.md"
PAIR = "a pair is NAME.jpg with NAME.txt, or with the field 'caption' in NAME.json"
STRING = "a list of strings is read from it"
OF_IMAGES = "referenced by no sample; 0 samples can be read; fields seen: none; suffixes seen: "
NO_PAIRS = "o2.json has the field 'texts': the whole tar is documents, not image-text pairs; "


def keys(folder: Path, **members: object) -> None:
    """Write a tar of three keys; ``{n}`` in a text stands for the number of each."""

    def filled(value: object, n: int) -> object:
        return value.replace("{n}", str(n)) if isinstance(value, str) else value

    numbered = [
        (f"o{n}.{suffix}", {k: filled(v, n) for k, v in value.items()} if isinstance(value, dict) else value)
        for n in range(3)
        for suffix, value in members.items()
    ]
    make_tar(folder / "a.tar", numbered)  # type: ignore[arg-type]


def one_document(folder: Path, texts: object) -> None:
    """Write a tar of pairs in which one json is a document."""
    members = [(f"o{n}.jpg", PICTURES[0]) for n in range(3)]
    members += [(f"o{n}.txt", b"words") for n in range(3)]
    jsons = [(f"o{n}.json", {"texts": texts} if n == 2 else {"w": n}) for n in range(3)]
    make_tar(folder / "a.tar", [*members, *jsons])


def lines(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')


@pytest.mark.parametrize(
    ("make", "settings", "says"),
    [
        pytest.param(
            lambda folder: keys(folder, jpg=PICTURES[0], json={"title": "s{n}", "id": 0}),
            {},
            f"3 members of the tar, 3 of them images, are referenced by no sample; no sample has a text or "
            f"an image; fields seen: title, id; {LISTS}; {PAIR}\n",
            id="strings",
        ),
        pytest.param(
            lambda folder: keys(folder, jpg=PICTURES[0], json={"texts": ["s"], "image": "o{n}.jpg"}),
            {"MM_IMAGES_FIELD": "image"},
            ": field 'image' is a string in o0.json: a list of the names of images is read from it; 3 ",
            id="the name of an image",
        ),
        pytest.param(
            lambda folder: keys(folder, jpg=PICTURES[0], json={"texts": {"en": "s"}}),
            {},
            f": field 'texts' is an object in o0.json: {STRING}; 3 members",
            id="an object",
        ),
        pytest.param(
            lines, {}, f"no sample has a text or an image; fields seen: text; {LISTS}\n", id="lines"
        ),
        pytest.param(
            lines, {"MM_TEXTS_FIELD": "text"}, f": field 'text' is a string in line 1: {STRING}; ", id="named"
        ),
        pytest.param(
            lambda folder: keys(folder, jpg=PICTURES[0]), {}, f"{OF_IMAGES}jpg; {PAIR}\n", id="images alone"
        ),
        pytest.param(
            lambda folder: keys(folder, jpg=PICTURES[0], cls=b"1"),
            {},
            f"6 members of the tar, 3 of them images, are {OF_IMAGES}jpg, cls; {PAIR}\n",
            id="classes",
        ),
        pytest.param(
            lambda folder: keys(folder, jpg=PICTURES[0], caption=b"words"),
            {},
            f"{OF_IMAGES}jpg, caption; {PAIR}\n",
            id="captions of another name",
        ),
        pytest.param(
            lambda folder: make_tar(folder / "a.tar", [("a.jpg", PICTURES[0])]),
            {},
            f": 1 member of the tar, an image, is {OF_IMAGES}jpg; {PAIR}\n",
            id="one image",
        ),
        pytest.param(
            lambda folder: one_document(folder, "x"),
            {},
            f": field 'texts' is a string in o2.json: {STRING}; {NO_PAIRS}6 members of the tar, 3 of them "
            f"images, are referenced by no sample; no sample has a text or an image; fields seen: w; "
            f"{LISTS}\n",
            id="one json with a string among pairs",
        ),
        pytest.param(
            lambda folder: one_document(folder, ["x"]),
            {},
            f": {NO_PAIRS}6 members of the tar, 3 of them images, are referenced by no sample; no sample has "
            f"an image; fields seen: w; {LISTS}\n",
            id="one document among pairs",
        ),
    ],
)
def test_a_cause_is_named_and_no_setting_that_cannot_help(
    tmp_path: Path,
    make: Callable[[Path], object],
    settings: dict[str, str],
    says: str,
) -> None:
    """Also: `inspect` that says that all would be refused has the exit code of `convert`."""
    make(tmp_path / "raw")
    done = run("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", **settings)
    assert says in done.stderr
    assert "check MM_" not in done.stderr
    seen = run("inspect", tmp_path / "raw", **settings)
    assert (done.returncode, seen.returncode) == (1, 1)
    assert f"would be lost, and MM_MAX_LOSS is 0.5: {done.stderr.partition(' is 0.5: ')[2]}" in seen.stdout


def test_a_field_that_is_set_is_not_advised_to_be_set(tmp_path: Path) -> None:
    lines(tmp_path / "raw")
    assert run("inspect", tmp_path / "raw", MM_TEXTS_FIELD="text").stdout.endswith(
        f"no text was taken from 1 of 1 shard; field 'text' is a string in line 1: {STRING}; see "
        "docs/raw_shards.md\n"
    )


def utf16(folder: Path) -> None:
    json_of = '{"texts": ["x", null], "images": [null, "o.jpg"]}'.encode("utf-16")
    keys(folder, jpg=PICTURES[0], json=json_of)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(
            utf16,
            "not_utf8 3: a.tar: o0.json: not UTF-8, but UTF-16: write it as UTF-8; 3 members of the tar, 3 "
            f"of them images, are {OF_IMAGES}jpg\n",
            id="UTF-16",
        ),
        pytest.param(
            lambda folder: document(folder, NFC, (NFD, PICTURES[0])),
            "missing_member 1: missing member 'é.png': the tar has 'e\\u0301.png', which looks alike, and "
            "not '\\xe9.png'; incomplete_sample 2: ",
            id="NFC names NFD",
        ),
    ],
)
def test_a_known_fault_comes_first_and_needs_no_advice(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(tmp_path / "raw")
    flags = ("--to", "parquet", "--on-materialize-error", "drop_sample")
    done = run("convert", tmp_path / "raw", tmp_path / "out", *flags)
    assert f"100% of it would be lost, and MM_MAX_LOSS is 0.5: {says}" in done.stderr
    assert "check MM_" not in done.stderr


def test_samples_whose_id_is_taken_are_counted_as_samples(tmp_path: Path) -> None:
    for name in "ab":
        keys(tmp_path / name, jpg=PICTURES[0], json={"texts": ["x", None], "images": [None, "jpg"]})
    source = f"{tmp_path}/*/a.tar"
    flags = ("--to", "parquet", "--on-materialize-error", "drop_sample")
    done = run("convert", source, tmp_path / "out", *flags)
    assert "is 0.5: 3 samples have an id that is taken (sample id 'o0' is already in partition 'a/a'): " in (
        done.stderr
    )
    assert done.stderr.endswith("set MM_SAMPLE_ID_PREFIX=shard\n")


def test_inspect_says_what_reads_the_rest(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("a.json", {"texts": ["x"]}), ("b.json", b'{"texts": ["\xff"]}')])
    done = run("inspect", tmp_path / "a.tar")
    assert done.returncode == 1
    assert "a.tar: b.json: not UTF-8: " in done.stderr
    assert done.stderr.endswith("; convert --on-materialize-error drop_sample reads the rest\n")


def test_verify_asks_for_what_is_missing_alone(tmp_path: Path) -> None:
    done = run("verify", tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("error: the following arguments are required: B\n")


def test_turns_are_told_to_be_of_a_kind_that_is_not_read(tmp_path: Path) -> None:
    turns = pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))
    columns = {
        "image": (pa.struct([("bytes", pa.binary())]), [{"bytes": PICTURES[0]}]),
        "dialogue": (turns, [[{"from": "human", "value": "hi"}]]),
    }
    documents(tmp_path / "a.parquet", columns)
    done = run("inspect", tmp_path / "a.parquet", "--texts-field", "dialogue")
    assert done.returncode == 1
    assert "a.parquet: column 'dialogue' is of a kind that is not read, list<element: struct<from" in (
        done.stderr
    )
    assert "not interleaved data" not in done.stderr
    seen = run("inspect", tmp_path / "a.parquet").stdout
    assert "no text was taken from 1 of 1 shard; columns that look like text: dialogue; see docs/" in seen


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("tar", "webdataset"),
        ("wds", "webdataset"),
        ("arrow", "arrow_cache"),
        ("json", "jsonl"),
        ("pq", "parquet"),
        ("hdf6", None),
    ],
)
def test_formats_that_are_no_names(tmp_path: Path, typed: str, nearest: str | None) -> None:
    done = run("convert", tmp_path, tmp_path / "out", "--to", typed)
    assert done.returncode == 2
    hint = "" if nearest is None else f"; the nearest is {nearest}"
    names = "parquet, webdataset, lance, arrow_cache, jsonl, mds"
    assert done.stderr.endswith(f"argument --to: {typed!r}: no such format, only {names}{hint}\n")


def plan(folder: Path, **settings: str) -> str:
    """What ``run --dry-run`` prints to stderr."""
    with chdir(folder):
        return run("run", "--dry-run", **{"MM_STORAGE": str(folder / "storage"), **settings}).stderr


def test_advice_on_raw_shards(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    line = f"mm-assets: no raw shards: {tmp_path}/demo/raw: no such file; MM_RAW_SHARDS is not set\n"
    assert plan(tmp_path) == line
    cache = raw / "cache"
    cache.mkdir()
    (cache / "_metadata.json").touch()
    advice = f"{cache}: not read: make raw shards of it first, with mm-assets convert SRC DST --to parquet\n"
    assert plan(tmp_path, MM_RAW_SHARDS=str(raw)) == (
        f"mm-assets: no raw shards: {raw}: no {'/'.join(RAW_SUFFIXES)} file in this folder; {advice}"
    )
    document(raw, "a.png", ("a.png", PICTURES[0]))
    assert plan(tmp_path, MM_RAW_SHARDS=str(raw)) == f"mm-assets: warning: {advice}"
    assert plan(tmp_path, MM_RAW_SHARDS=str(raw / "*.tar")) == ""


def test_outputs_beside_raw_shards_are_not_advised_on(tmp_path: Path) -> None:
    document(tmp_path, "a.png", ("a.png", PICTURES[0]))
    storage = tmp_path / "storage"
    assert run("convert", tmp_path / "a.tar", storage / "documents.lance", "--to", "lance").returncode == 0
    assert plan(tmp_path, MM_RAW_SHARDS=str(tmp_path)) == ""


def test_hive_folders_of_raw_shards(tmp_path: Path) -> None:
    hive(tmp_path / "raw")
    expected = "such names of folders become no columns; ids that are made begin with them"
    assert plan(tmp_path, MM_RAW_SHARDS=str(tmp_path / "raw")) == (
        f"mm-assets: warning: {tmp_path}/raw/year=2023: {expected}\n"
    )


def test_scores_that_are_there_in_any_case(tmp_path: Path) -> None:
    document(tmp_path / "raw", "a.png", ("a.png", PICTURES[0]))
    told = plan(tmp_path, MM_RAW_SHARDS=str(tmp_path / "raw"), MM_SCORES="text_digest")
    assert told.endswith("'text_digest' to be measured; it is there in any case: leave it out\n")


def test_damaged_tiffs_do_not_speak_for_themselves(tmp_path: Path) -> None:
    """libtiff would print "Fax4Decode: Bad code word at line 20 of strip 0"."""
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("1").save(file, "TIFF", compression="group4")
    damaged = bytearray(file.getvalue())
    damaged[20:60] = b"\xff" * 40
    document(tmp_path / "raw", "a.tif", ("a.tif", bytes(damaged)))
    done = run("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", "--workers", "1")
    assert (done.returncode, done.stderr) == (0, "")
