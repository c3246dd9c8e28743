"""MM_FILTERED=reference: the graph makes the same of references as of copies, and finds what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import REFERRED
from mm_assets.accounting.accounts import Ledger
from mm_assets.formats.registry import reader_for
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar, tar_members
from mm_assets_tests.graph.commands import ok, run
from mm_assets_tests.graph.deployment import Deployment, materialized
from mm_assets_tests.graph.output_digests import digests
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards

SETTINGS = {"MM_WORKERS": "1", "MM_MIN_ASPECT_RATIO": "0.9", "MM_FILTERED": "reference"}
# Of filtered Parquet the bytes differ, and what its record notes of them.
DIFFERENT = ("filtered/", "ledger/accounts/filtered_parquet/")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Deployment]]:
    """The demo's shards, one of them cut, by copy and by reference."""
    folder = tmp_path_factory.mktemp("filtered")
    make_shards(folder / "raw", members=2, pdf=1, samples=4)
    cut = folder / "raw" / "web-00001.tar"
    cut.write_bytes(cut.read_bytes()[:-3000])
    found = []
    for number, way in enumerate(("copy", "reference")):
        instance = quick_instance(tmp_path_factory.mktemp("home"))
        deployment = Deployment(
            str(folder / "raw"),
            str(folder / way / "storage"),
            instance.__enter__(),
            {**SETTINGS, "MM_FILTERED": way},
        )
        assert deployment.run().success, number
        found.append((deployment, instance))
    yield found[0][0], found[1][0]
    for _, instance in found:
        instance.__exit__(None, None, None)


@pytest.fixture
def referring(both: tuple[Deployment, Deployment], tmp_path: Path) -> Iterator[Deployment]:
    deployment = both[1].copied(tmp_path)
    with deployment.instance:
        yield deployment


def rows(place: str) -> pa.Table:
    tables = [batch.data for batch in reader_for("parquet", place)]
    return pa.concat_tables(tables, promote_options="default")


def test_all_other_outputs_are_the_same(both: tuple[Deployment, Deployment]) -> None:
    copy, reference = (
        {k: v for k, v in digests(Path(one.storage)).items() if not k.startswith(DIFFERENT)} for one in both
    )
    assert copy == reference
    assert {name.partition("/")[0] for name in copy} >= {"curated", "webdataset", "arrow_cache", "ledger"}
    tables = [lance.dataset(f"{one.storage}/lance/items.lance").to_table() for one in both]
    assert tables[0].equals(tables[1]) and tables[0].num_rows > 0


def test_filtered_rows_versions_and_losses_are_the_same(both: tuple[Deployment, Deployment]) -> None:
    assert rows(f"{both[0].storage}/filtered").equals(rows(f"{both[1].storage}/filtered"))
    ledgers = [Ledger(one.storage) for one in both]
    found = [ledger.records("filtered_parquet", ledger.named("filtered_parquet")) for ledger in ledgers]
    assert {key: record.version for key, record in found[0].items()} == {
        key: record.version for key, record in found[1].items()
    }
    for key in found[0]:
        lost = [ledger.items("filtered_parquet", key) for ledger in ledgers]
        assert lost[0].equals(lost[1])
    images = {key: record.metadata["images"] for key, record in found[1].items()}
    assert {key: record.metadata[REFERRED] for key, record in found[1].items()} == images
    assert all(images.values()) and all(REFERRED not in record.metadata for record in found[0].values())


def test_another_way_makes_filtered_parquet_alone_again(referring: Deployment) -> None:
    copied = Deployment(
        referring.raw, referring.storage, referring.instance, {**referring.environment, "MM_FILTERED": "copy"}
    )
    made = materialized(copied.run())
    changed = {
        asset
        for asset, found in made.items()
        if not all("unchanged" in event.metadata for event in found.values())
    }
    assert changed == {"raw_shards", "filtered_parquet"} & made.keys()
    (file,) = Path(referring.storage, "filtered").glob("web-00000.parquet")
    table = pq.read_table(file)
    assert "binary_ref" not in table.column_names and table["binary_content"].null_count < table.num_rows


def test_curated_parquet_that_changes_makes_filtered_due(referring: Deployment) -> None:
    raw = Path(referring.raw) / "web-00000.tar"
    members = tar_members(raw)
    png = next(name for name in members if name.endswith(".png"))
    make_tar(raw, {**members, png: picture(0)[1]}.items())
    assert referring.run(["web-00000"], ["raw_shards", "curated_parquet"]).success
    shown = run(
        referring, "convert", f"{referring.storage}/filtered", raw.parent.parent / "out", "--to", "parquet"
    )
    assert shown.returncode == 1
    assert "filtered/web-00000.parquet: sample " in shown.stderr and "binary_content" in shown.stderr
    published = run(referring, "publish", raw.parent.parent / "published", "--outputs", "curated,filtered")
    assert published.returncode == 1
    assert "filtered_parquet: shard 'web-00000': not proven as it is now" in published.stderr
    made = materialized(referring.run(["web-00000"]))
    assert "unchanged" in made["curated_parquet"]["web-00000"].metadata
    assert "unchanged" not in made["filtered_parquet"]["web-00000"].metadata
    assert (
        picture(0)[1] in rows(f"{referring.storage}/filtered/web-00000.parquet")["binary_content"].to_pylist()
    )


def test_what_is_wrong_with_curated_parquet_is_found(referring: Deployment) -> None:
    """Another image in curated Parquet is found by its proof, and by that of what refers to it."""
    curated = Path(referring.storage, "curated", "web-00000.parquet")
    data = bytearray(curated.read_bytes())
    at = data.index(b"\x89PNG\r\n") + 60
    data[at] ^= 1
    curated.write_bytes(data)
    for asset in ("curated_parquet", "filtered_parquet"):
        proven = referring.check(asset, "zero_loss")
        problems = {
            each.partition: each.metadata["problems"].value
            for each in proven.get_asset_check_evaluations()
            if not each.passed and each.partition is not None
        }
        assert list(problems) == ["web-00000"]
        assert "another image in curated/web-00000.parquet" in problems["web-00000"][0], problems
    assert referring.run(["web-00000"]).success
    for asset in ("curated_parquet", "filtered_parquet"):
        assert referring.check(asset, "zero_loss").success


def test_what_is_published_has_the_images_too(both: tuple[Deployment, Deployment], tmp_path: Path) -> None:
    refused = run(both[1], "publish", tmp_path / "pub", "--outputs", "filtered,webdataset")
    assert (refused.returncode, refused.stderr) == (
        1,
        "mm-assets: filtered_parquet: its images lie in curated (MM_FILTERED=reference): publish that, too "
        "(--outputs curated,filtered,webdataset)\n",
    )
    assert not (tmp_path / "pub").exists()
    ok(both[1], "publish", tmp_path / "pub", "--outputs", "curated,filtered")
    assert rows(f"{tmp_path}/pub/filtered").equals(rows(f"{both[0].storage}/filtered"))
    assert "of the same name in `curated`" in (tmp_path / "pub" / "filtered" / "README.md").read_text()
    assert "binary_ref" not in (tmp_path / "pub" / "curated" / "README.md").read_text()
    apart = run(both[1], "publish", tmp_path / "pub", "--outputs", "curated")
    assert (apart.returncode, apart.stderr) == (
        1,
        "mm-assets: curated_parquet: filtered_parquet there has its images in it (MM_FILTERED=reference): "
        "publish that, too (--outputs curated,filtered)\n",
    )
    ok(both[1], "publish", tmp_path / "other", "--outputs", "curated")


def test_commands_read_through_the_references(both: tuple[Deployment, Deployment], tmp_path: Path) -> None:
    storage = both[1].storage
    assert ok(both[1], "verify", f"{storage}/filtered", f"{both[0].storage}/filtered").endswith("equal\n")
    table = rows(f"{storage}/filtered/pdf-00000.parquet")
    sample_id = table["sample_id"][0].as_py()
    shown = [ok(one, "show", sample_id).replace(one.storage, "") for one in both]
    assert shown[0] == shown[1] and "image" in shown[0]


def test_duckdb_joins_the_images(both: tuple[Deployment, Deployment]) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = """
        SELECT f.* EXCLUDE (binary_content, binary_ref), c.binary_content
        FROM read_parquet('{0}/filtered/*.parquet', union_by_name = true) f
        LEFT JOIN '{0}/curated/*.parquet' c USING (sample_id, position, modality)
    """
    names = ["sample_id", "position", "modality", "text_content", "source_ref", "binary_content"]
    found = duckdb.sql(query.format(both[1].storage)).to_arrow_table().select(names)
    copies = rows(f"{both[0].storage}/filtered").select(names)
    order = [(name, "ascending") for name in names[:3]]
    assert found.sort_by(order).to_pylist() == copies.sort_by(order).to_pylist()
