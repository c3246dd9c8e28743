"""Raw shards in layouts of the field through the real graph: image-text pairs, Parquet of others, fields of
other names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.cli import main
from mm_assets_tests.formats.parquet_of_others import (
    IMAGE,
    PICTURES,
    curator,
    curator_rows,
    documents,
    image,
    interleaved,
)
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.commands import ok
from mm_assets_tests.graph.deployment import ASSETS, CURATED, Deployment, failed_shard_checks, materialized
from mm_assets_tests.graph.published import account, lost_items

Deploy = Callable[..., Deployment]


def rows_of(storage: Path, shard: str, asset: str = "filtered") -> list[dict[str, Any]]:
    return pq.read_table(storage / asset / f"{shard}.parquet").to_pylist()


def contents(storage: Path, shard: str, asset: str = "filtered") -> dict[str, list[tuple[int, Any]]]:
    """By sample id, (position, text or bytes) of its items."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for row in rows_of(storage, shard, asset):
        items = found.setdefault(row["sample_id"], [])
        if row["position"] >= 0:
            items.append(
                (row["position"], row["text_content"] if row["modality"] == "text" else row["binary_content"])
            )
    return found


def assert_proven(storage: Path, shards: int) -> None:
    proof = json.loads((storage / "proof" / "proof.json").read_text())
    assert proof["is_equal"]
    made = ("curated_parquet", "filtered_parquet", "final_tars", "lance_table", "arrow_cache")
    assert {asset: told["shards"] for asset, told in proof["assets"].items()} == dict.fromkeys(made, shards)


def img2dataset(folder: Path, shard: str, keys: int, *more: tuple[str, Any]) -> None:
    """A tar as img2dataset writes it, with its two files beside it: keys begin anew in each."""
    members: list[tuple[str, Any]] = []
    for number in range(keys):
        key = f"{number:08d}"
        caption = f"caption {number} of {shard}"
        fields = {
            "caption": caption,
            "key": key,
            "status": "success",
            "width": 16,
            "url": f"https://x/{shard}/{key}.jpg",
        }
        members += [
            (f"{key}.jpg", PICTURES[number]),
            (f"{key}.txt", caption.encode()),
            (f"{key}.json", fields),
        ]
    make_tar(folder / f"{shard}.tar", [*members, *more])
    documents(folder / f"{shard}.parquet", {"caption": (pa.string(), ["c"]), "url": (pa.string(), ["u"])})
    (folder / f"{shard}_stats.json").write_text(json.dumps({"count": keys, "successes": keys}))


def test_image_text_pairs_with_ids_that_start_anew(tmp_path: Path, deploy: Deploy) -> None:
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    img2dataset(raw, "00000", 3)
    img2dataset(
        raw,
        "00001",
        2,
        ("lone.txt", b"no image"),
        ("bad.jpg", PICTURES[5]),
        ("bad.txt", b"\xff"),
        ("extra.npy", b"x"),
    )
    deployment = deploy(MM_SAMPLE_ID_PREFIX="shard")
    result = deployment.run()
    assert result.success
    assert {asset: sorted(shards) for asset, shards in materialized(result).items() if asset in ASSETS} == {
        asset: ["00000", "00001"] for asset in ASSETS
    }
    assert (
        f"{raw}: 2 Parquet files beside tars passed over, such as 00000.parquet; name *.parquet to read them"
        in deployment.log(result)
    )
    assert {(check, shard) for _, check, shard in failed_shard_checks(result)} == {
        ("integrity", "00001"), ("empty", "00001"), ("materialization_errors", "00001"),
    }  # fmt: skip
    assert contents(storage, "00000") == {
        f"00000/{number:08d}": [(0, f"caption {number} of 00000"), (1, PICTURES[number])]
        for number in range(3)
    }
    assert list(contents(storage, "00001")) == ["00001/00000000", "00001/00000001"]
    first = rows_of(storage, "00000")[0]
    assert (first["width"], first["url"], first["caption"]) == (
        16,
        "https://x/00000/00000000.jpg",
        "caption 0 of 00000",
    )
    assert_proven(storage, 2)

    records = {
        record["sample_id"]: record
        for record in pq.read_table(storage / "quarantine" / "00001.parquet").to_pylist()
    }
    assert {key: (record["kind"], record["position"], record["raw"]) for key, record in records.items()} == {
        "00001/lone": ("missing_member", 1, b"no image"), "00001/bad": ("not_utf8", -1, b"\xff"),
    }  # fmt: skip
    lost = lost_items(storage, "curated_parquet", "00001")
    assert sorted(row["member"] for row in lost if row["outcome"] == "unreferenced") == [
        "bad.jpg",
        "extra.npy",
    ]

    again = deployment.run()
    assert all(
        "unchanged" in made.metadata for asset in ASSETS for made in materialized(again)[asset].values()
    )


def test_parquet_of_others(tmp_path: Path, deploy: Deploy, capsys: pytest.CaptureFixture[str]) -> None:
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    documents(
        raw / "obelics.parquet",
        interleaved(
            [["a", None, "b"], [None, "c"], ["d"], ["e"]],
            [
                [None, image(0, "0.png"), None],
                [image(1), None],
                [{"bytes": None, "path": "https://x/y.jpg"}],
                [None],
            ],
            uid=(pa.string(), ["w", "x", "y", "w"]),
            stars=(pa.int64(), [1, 2, None, 4]),
        ),
    )
    documents(raw / "sub" / "plain.parquet", interleaved([["f"]], [[image(2)]], uid=(pa.string(), ["z"])))
    deployment = deploy(MM_SAMPLE_ID_FIELD="uid")
    result = deployment.run()
    assert result.success
    assert failed_shard_checks(result) == {
        ("raw_shards", "integrity", "obelics"),
        ("quarantine", "empty", "obelics"),
        ("curated_parquet", "materialization_errors", "obelics"),
    }
    assert contents(storage, "obelics") == {
        "w": [(0, "a"), (1, PICTURES[0]), (2, "b")],
        "x": [(0, PICTURES[1]), (1, "c")],
    }
    assert contents(storage, "sub%2Fplain") == {"z": [(0, "f"), (0, PICTURES[2])]}
    assert [row["stars"] for row in rows_of(storage, "obelics") if row["position"] < 0] == [1, 2]
    assert pq.read_schema(storage / "curated" / "obelics.parquet").field("stars").type == pa.int64()
    assert_proven(storage, 2)

    records = {
        record["sample_id"]: record
        for record in pq.read_table(storage / "quarantine" / "obelics.parquet").to_pylist()
    }
    assert {
        key: (record["kind"], record["source_uri"], record["member"]) for key, record in records.items()
    } == {
        "y": ("dangling_reference", "obelics.parquet", "row 2, images[0]"),
        "w": ("duplicate_id", "obelics.parquet", "row 3"),
    }
    assert json.loads(records["w"]["raw"]) == {"texts": ["e"], "images": [None], "uid": "w", "stars": 4}
    assert json.loads(records["y"]["raw"]) == {
        "texts": ["d"],
        "images": [{"path": "https://x/y.jpg"}],
        "uid": "y",
        "stars": None,
    }
    assert records["y"]["raw_note"] == "the values of its row, but for bytes"
    survey = pq.read_table(storage / "ledger" / "raw_shards" / "obelics.parquet").to_pylist()
    assert [
        (row["sample_id"], row["member"], row["byte_offset"], row["items"], row["images"]) for row in survey
    ] == [
        ("w", "row 0", None, 4, 1),
        ("x", "row 1", None, 3, 1),
        ("y", "row 2", None, 3, 1),
    ]

    assert main(["explain", "y", "--storage", str(storage)]) == 0
    told = capsys.readouterr().out
    assert "shard obelics, from obelics.parquet: row 2" in told
    assert "row 2, images[0]  quarantined: dangling_reference: dangling reference 'https://x/y.jpg'" in told

    again = deployment.run()
    assert all(
        "unchanged" in made.metadata for asset in ASSETS for made in materialized(again)[asset].values()
    )


def test_curators_parquet_as_raw_shards(tmp_path: Path, deploy: Deploy) -> None:
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    extras = [pa.field("url", pa.large_string())]
    good = [*curator_rows("a", "x", PICTURES[0], url="u"), *curator_rows("b", None, "y", url="v")]
    twice = curator_rows("a", "again")
    broken = [{"sample_id": "c", "position": 0, "modality": "video"}]
    curator(raw / "p.parquet", [*good, *twice, *broken, *curator_rows("d", PICTURES[1])], extras)
    result = deploy().run()
    assert result.success
    assert contents(storage, "p") == {
        "a": [(0, "x"), (1, PICTURES[0])],
        "b": [(1, "y")],
        "d": [(0, PICTURES[1])],
    }
    assert failed_shard_checks(result) == {("raw_shards", "integrity", "p"), ("quarantine", "empty", "p")}
    assert_proven(storage, 1)
    records = pq.read_table(storage / "quarantine" / "p.parquet").to_pylist()
    assert [(r["sample_id"], r["kind"], r["source_uri"], r["member"]) for r in records] == [
        ("a", "duplicate_id", "p.parquet", "row 5"),
        ("c", "bad_layout", "p.parquet", "row 7"),
    ]
    assert json.loads(records[0]["raw"])["position"] == -1
    sums: Counter[tuple[str, str | None]] = Counter()
    for row in pq.read_table(account(storage, "curated_parquet", "p")).to_pylist():
        sums[row["outcome"], row["kind"]] += row["items"] or 0
    assert +sums == {
        ("in", None): 10,
        ("out", None): 7,
        ("quarantined", "duplicate_id"): 2,
        ("quarantined", "bad_layout"): 1,
    }


def test_parquet_that_is_refused_fails_alone_in_one_line(tmp_path: Path, deploy: Deploy) -> None:
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    documents(raw / "good.parquet", interleaved([["a"]], [[image(0)]]))
    documents(raw / "other.parquet", {"id": (pa.int64(), [1]), "label": (pa.string(), ["x"])})
    (raw / "junk.parquet").write_bytes(b"PAR1 junk PAR1")
    deployment = deploy()
    result = deployment.run()
    assert not result.success
    assert {asset: sorted(shards) for asset, shards in materialized(result).items()} == {
        asset: ["good"] for asset in ASSETS
    }
    told = deployment.log(result)
    assert (
        "other.parquet: not interleaved data: it has columns id: int64, label: string; expected a row an item"
        in told
    )
    assert "junk.parquet: not a readable Parquet file: " in told
    assert contents(storage, "good") == {"good/0": [(0, "a"), (0, PICTURES[0])]}


def test_a_folder_of_parquet_stays_one_when_outputs_lie_in_it(tmp_path: Path, deploy: Deploy) -> None:
    """The tars below MM_STORAGE are none of its own."""
    raw = tmp_path / "raw"
    documents(raw / "p.parquet", interleaved([["a"]], [[image(0)]]))
    deployment = deploy(storage=str(raw / "out"))
    assert deployment.run().success
    again = deployment.run()
    assert again.success
    assert {asset: sorted(shards) for asset, shards in materialized(again).items()} == {
        asset: ["p"] for asset in ASSETS
    }
    assert "passed over" not in deployment.log(again)


def test_names_of_fields_and_extensions(tmp_path: Path, deploy: Deploy) -> None:
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    make_tar(
        raw / "a.tar",
        [
            (
                "d.meta",
                {
                    "text_list": ["t", None],
                    "image_list": [None, "d.pic"],
                    "widths": [7],
                    "langs": ["en"],
                    "n": 1,
                },
            ),
            ("d.pic", PICTURES[0]),
            ("e.meta", {"text_list": ["u"], "image_list": ["only"], "scan": "pages/e.pic", "n": 2}),
            ("pages/e.pic", PICTURES[1]),
            ("no.json", {"texts": ["not a document here"]}),
        ],
    )
    result = deploy(
        MM_TEXTS_FIELD="text_list",
        MM_IMAGES_FIELD="image_list",
        MM_JSON_EXTENSIONS="meta",
        MM_IMAGE_EXTENSIONS="pic",
        MM_IMAGE_MEMBER_FIELD="scan",
        MM_PER_IMAGE_FIELDS="widths",
        MM_PER_TEXT_FIELDS="langs",
        MM_SAMPLE_ID_FIELD="n",
    ).run()
    assert result.success
    assert contents(storage, "a") == {"1": [(0, "t"), (1, PICTURES[0])], "2": [(0, "u"), (0, PICTURES[1])]}
    first = [row for row in rows_of(storage, "a") if row["sample_id"] == "1"]
    assert [(row["langs"], row["widths"]) for row in first] == [(None, None), ("en", None), (None, 7)]
    lost = lost_items(storage, "curated_parquet", "a")
    assert [(row["outcome"], row["member"]) for row in lost] == [("unreferenced", "no.json")]
    assert_proven(storage, 1)


def test_names_of_columns(tmp_path: Path, deploy: Deploy) -> None:
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    columns = {
        "caption": (pa.string(), ["t", "u"]),
        "jpg": (pa.binary(), [PICTURES[1], PICTURES[1]]),
        "key": (pa.string(), ["0", "1"]),
    }
    for shard in ("x", "y"):
        documents(raw / f"{shard}.parquet", columns)
    settings = {"MM_TEXTS_FIELD": "caption", "MM_IMAGES_FIELD": "jpg", "MM_SAMPLE_ID_FIELD": "key"}
    result = deploy(**settings, MM_SAMPLE_ID_PREFIX="shard").run()
    assert result.success and failed_shard_checks(result) == set()
    for shard in ("x", "y"):
        assert contents(storage, shard) == {
            f"{shard}/0": [(0, "t"), (1, PICTURES[1])],
            f"{shard}/1": [(0, "u"), (1, PICTURES[1])],
        }
    assert_proven(storage, 2)


def test_text_that_is_not_taken_is_a_check(tmp_path: Path, deploy: Deploy) -> None:
    columns = {
        "image": (IMAGE, [image(0)]),
        "url": (pa.string(), ["u"]),
        "question": (pa.string(), ["q"]),
        "![x](http://x.invalid)": (pa.string(), ["a"]),
    }
    documents(tmp_path / "raw" / "a.parquet", columns)
    documents(tmp_path / "raw" / "b.parquet", interleaved([["t"]], [[image(0)]]))
    deployment = deploy()
    result = deployment.run()
    assert result.success and failed_shard_checks(result) == {("raw_shards", "content_taken", "a")}
    (found,) = [
        e
        for e in result.get_asset_check_evaluations()
        if e.check_name == "content_taken" and e.partition == "a"
    ]
    assert found.severity.name == "WARN" and found.description is None
    names = ["question", "![x](http://x.invalid)"]
    assert found.metadata["columns"].value == {"text": names}
    assert isinstance(found.metadata["summary"], dg.TextMetadataValue), "plain text, whatever the names are"
    assert found.metadata["summary"].value == (
        f"no text was taken; columns that look like text: {', '.join(names)}; see docs/raw_shards.md"
    )
    assert_proven(tmp_path / "storage", 2)


def test_tars_of_a_mac(tmp_path: Path, deploy: Deploy) -> None:
    """What macOS has added is no document and no loss: it is in the shard's metadata, and in one line."""
    residue = b"\0\5\x16\7" + bytes(60)
    for shard in "ab":
        fields = {"sample_id": shard, "texts": ["t"], "images": [None, "0.png"]}
        members = [("0.png", PICTURES[0]), ("0.json", fields)]
        packed = [pair for name, data in members for pair in ((f"._{name}", residue), (name, data))]
        make_tar(tmp_path / "raw" / f"{shard}.tar", [*packed, ("__MACOSX/._x.json", residue)])
    deployment = deploy(MM_MAX_LOSS="0")
    told = ok(deployment, "run", DAGSTER_HOME=str(tmp_path / "home"))
    line = "6 members left out, added by macOS or tar and no data: ._0.png, ._0.json, __MACOSX/._x.json, …"
    assert [words for words in told.splitlines() if "left out" in words] == [line]
    assert "members and items lost: 0%; checks failed: 0" in told
    storage = tmp_path / "storage"
    assert contents(storage, "a") == {"a": [(0, "t"), (1, PICTURES[0])]}
    assert not list((storage / "quarantine").glob("*.parquet"))
    assert_proven(storage, 2)
    result = deployment.run(assets=CURATED)
    made = materialized(result)["curated_parquet"]["a"].metadata["left_out_members"].value
    assert made == {"count": 3, "first": ["._0.png", "._0.json", "__MACOSX/._x.json"]}
    assert not failed_shard_checks(result)


def with_survey_of_earlier_code(storage: Path, shard: str) -> None:
    """Take from a survey what earlier code did not know."""
    store = SurveyStore(str(storage))
    survey = store.read(shard)
    assert survey is not None
    store.write(shard, replace(survey, content=None, has_pairs=None))


def test_surveys_of_earlier_code(tmp_path: Path, deploy: Deploy) -> None:
    """They are read as they are, but for those of shards whose rows may be pairs, which are made again."""
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    pair = {"image": (IMAGE, [image(0)]), "caption": (pa.string(), ["c"])}
    documents(raw / "pair.parquet", pair)
    documents(raw / "lists.parquet", interleaved([["a", "b"]], [[image(1), image(2)]]))
    documents(raw / "short.parquet", interleaved([["a"]], [[image(3)]]))
    documents(
        raw / "vqa.parquet", {"images": (pa.list_(IMAGE), [[image(4)] * 2]), "question": (pa.string(), ["q"])}
    )
    deployment = deploy(MM_SAMPLE_ID_PREFIX="shard")
    assert deployment.run().success
    shards = ("pair", "lists", "short", "vqa")
    for shard in shards:
        with_survey_of_earlier_code(storage, shard)
    survey = SurveyStore(str(storage)).read("vqa")
    assert survey is not None and survey.untaken == {"text": ("question",)}
    before = {path: path.stat().st_mtime_ns for path in (storage / "ledger" / "raw_shards").glob("*.parquet")}
    assert deployment.run(assets=CURATED).success
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {path.stem for path in before if before[path] != after[path]} == {"pair", "short"}
    assert contents(storage, "pair") == {"pair/0": [(0, "c"), (1, PICTURES[0])]}
    assert_proven(storage, len(shards))
