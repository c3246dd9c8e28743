"""Raw shards of a plugin, through the real graph: the documents of its code are treated as those of tars."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.document_tars import PluginAddress
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.model.errors import ShardError
from mm_assets.model.samples import build_source_ref
from mm_assets.settings_file import PluginError
from mm_assets_tests.cli.commands import ok, only_line, run
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import Deployment, failed_shard_checks, materialized, prove
from mm_assets_tests.warm_workers import warm_workers

Deploy = Callable[..., Deployment]
Page = tuple[object, object, object, int]
# A database a shard: an odd source that no reader of ours knows.
CODE = """
import sqlite3
from datetime import date
from pathlib import Path

FOLDER = Path({folder!r})

class Books:
    name = "books"

    def shards(self):
        return {{f"de/{{path.stem}}": str(path.stat().st_mtime_ns) for path in FOLDER.glob("*.db")}}

    def documents(self, shard):
        connection = sqlite3.connect(FOLDER / f"{{Path(shard).name}}.db")
        for name, text, cover, year in connection.execute("SELECT * FROM page ORDER BY rowid"):
            yield name, [text, cover, None, "end"], {{"year": year, "seen": date(2024, 1, year % 28 + 1)}}
        connection.close()

SOURCES = [Books()]
"""


def database(path: Path, pages: list[Page]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE page (name, text, cover, year)")
        connection.executemany("INSERT INTO page VALUES (?, ?, ?, ?)", pages)
    connection.close()


@dataclass(frozen=True)
class Books:
    """A plugin that can be imported, under a name of its own: workers may outlive a test."""

    name: str
    module: Path
    folder: Path

    def replace(self, old: str, new: str) -> None:
        self.module.write_text(self.module.read_text().replace(old, new))


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Books]:
    name = f"books_{abs(hash(tmp_path))}"
    found = Books(name, tmp_path / f"{name}.py", tmp_path / "books")
    found.folder.mkdir()
    found.module.write_text(CODE.format(folder=str(found.folder)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of spawned workers
    monkeypatch.setenv("MM_PLUGINS", name)
    with warm_workers(apart=True):  # whose environment names this plugin
        yield found
    sys.modules.pop(name, None)


def pages(prefix: str, number: int = 3) -> list[Page]:
    return [(f"{prefix}{n}", f"Page {n}.", picture(n)[1], 1900 + n) for n in range(number)]


def test_gate_quarantine_accounting_and_proof(tmp_path: Path, deploy: Deploy, books: Books) -> None:
    database(books.folder / "a.db", pages("a"))
    bad: list[Page] = [("b1", 7, b"", 1), (None, "no id", None, 2)]
    database(books.folder / "b.db", [*pages("b", 6), *bad, *pages("a", 1)])
    deployment = deploy(raw="plugin:books", MM_PLUGINS=books.name)
    result = deployment.run()
    assert result.success
    assert set(materialized(result)["lance_table"]) == {"de/a", "de/b"}
    assert failed_shard_checks(result) == {
        ("raw_shards", "integrity", "de/b"),
        ("raw_shards", "unique_sample_ids", "de/b"),
        ("quarantine", "empty", "de/b"),
    }
    storage = tmp_path / "storage"
    table = pq.read_table(storage / "curated" / "de%2Fa.parquet")
    assert table.schema.field("seen").type == pa.date32()
    assert table.schema.field("year").type == pa.int64()
    rows = table.to_pylist()
    assert [(row["sample_id"], row["position"], row["modality"]) for row in rows[:4]] == [
        ("a0", -1, "metadata"),
        ("a0", 0, "text"),
        ("a0", 1, "image"),
        ("a0", 3, "text"),
    ]
    assert [row["binary_content"] for row in rows if row["modality"] == "image"] == [
        picture(n)[1] for n in range(3)
    ]
    records = pq.read_table(storage / "quarantine" / "de%2Fb.parquet").to_pylist()
    kinds = {(record["sample_id"], record["kind"]) for record in records}
    assert kinds == {("b1", "duplicate_id"), ("refused document 8", "bad_sample_id"), ("a0", "duplicate_id")}
    is_equal, _, proof = prove(deployment)
    assert is_equal
    assert proof["is_equal"] is True

    files = {file: file.stat().st_mtime_ns for file in storage.glob("*/*.parquet")}
    assert deployment.run().success
    assert {file: file.stat().st_mtime_ns for file in storage.glob("*/*.parquet")} == files
    database(books.folder / "b.db", pages("b", 6))
    mended = deployment.run()
    assert failed_shard_checks(mended) == set()
    assert list((storage / "quarantine").glob("*.parquet")) == []


def test_a_shard_whose_code_fails_fails_alone(tmp_path: Path, deploy: Deploy, books: Books) -> None:
    database(books.folder / "a.db", pages("a"))
    (books.folder / "b.db").write_bytes(b"no database" * 100)
    deployment = deploy(raw="plugin:books", MM_PLUGINS=books.name)
    result = deployment.run(assets=["raw_shards", "curated_parquet"])
    assert set(materialized(result)["curated_parquet"]) == {"de/a"}
    line = f"plugin:books: documents('de/b') of {books.name}: DatabaseError: file is not a database"
    assert line in deployment.log(result)


def test_commands_take_it(tmp_path: Path, books: Books) -> None:
    database(books.folder / "a.db", pages("a"))
    out = tmp_path / "out"
    plugins = {"MM_PLUGINS": books.name}
    told = ok("convert", "plugin:books", out, "--to", "parquet", **plugins)
    assert "1 partition, 3 samples, 3 images, 6 texts" in told
    assert (out / "de%2Fa.parquet").exists()
    ok("verify", "plugin:books", out, **plugins)
    assert "webdataset, 1 partition, 3 samples" in ok("inspect", "plugin:books", **plugins)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('name = "books"', 'name = "Books!"', "a source has no name of a-z, 0-9 and _"),
        ("def shards", "def shrads", "source 'books': shards must be a method of an object"),
        ("[Books()]", "[Books]", "source 'books': shards must be a method of an object"),
        ("[Books()]", "[Books(), Books()]", "source 'books': another one has this name"),
        ("[Books()]", "Books()", "SOURCES must be a list"),
    ],
)
def test_a_source_that_does_not_fit_is_one_line(books: Books, old: str, new: str, line: str) -> None:
    books.replace(old, new)
    with pytest.raises(PluginError, match=f"^MM_PLUGINS: module '{books.name}': ") as raised:
        PluginAddress("books").names()
    assert line in str(raised.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("{}", "plugin:books: the source has no shards"),
        ("['a']", "no mapping of names and versions: ['a']"),
        ("{'a': 1}", "name and version are texts: 'a': 1"),
        ("{'a': ''}", "name and version are texts: 'a': ''"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_shards_that_do_not_fit_are_one_line(books: Books, given: str, line: str) -> None:
    books.replace("def shards(self):", f"def shards(self):\n        return {given}")
    out = books.folder.parent / "out"
    assert line in only_line(run("convert", "plugin:books", out, "--to", "parquet", MM_PLUGINS=books.name))


@pytest.mark.parametrize("name", ["../e", ".hid", "a//b", "/abs", "q/", "d/.h", "..", ".", "a/./b"])
def test_a_name_that_no_listing_has_is_refused(books: Books, name: str) -> None:
    books.replace("def shards(self):", f"def shards(self):\n        return {{'a': '1', {name!r}: '1'}}")
    with pytest.raises(ShardError) as raised:
        RawLocations("plugin:books").shards()
    assert str(raised.value).startswith(
        f"plugin:books: shards() of {books.name}: shard {name!r}: a name is words"
    )


def test_a_name_that_has_no_utf_8_is_refused(books: Books) -> None:
    books.replace("def shards(self):", "def shards(self):\n        return {'a': '1', 'b\\ud800': '1'}")
    with pytest.raises(ShardError, match="lone surrogates"):
        RawLocations("plugin:books").shards()


def test_other_names_are_those_of_shards(books: Books) -> None:
    names = ["a b", "d.tar/e", "x.tar", "é?*#[%2e", "_h", "~", "-"]
    books.replace("def shards(self):", f"def shards(self):\n        return dict.fromkeys({names!r}, '1')")
    assert sorted(RawLocations("plugin:books").shards()) == sorted(names)


def test_only_plugins_name_modules(tmp_path: Path, books: Books) -> None:
    def line(source: str, plugins: str = "") -> str:
        return only_line(run("convert", source, tmp_path / "out", "--to", "parquet", MM_PLUGINS=plugins))

    for name in ("os", "sqlite3", books.name, "../books"):
        expected = f"plugin:{name}: no source of a plugin has this name; "
        assert expected in line(f"plugin:{name}", books.name)
    assert "MM_PLUGINS names no module with SOURCES" in line("plugin:books")
    with pytest.raises(ValueError, match="plugin:… and other locations cannot be mixed"):
        RawLocations("plugin:books /data/*.tar")
    # A locator of the data that names a plugin leads nowhere.
    database(books.folder / "a.db", pages("a"))
    ref = build_source_ref("plugin://books/de/a.tar", "a0.1.png", 512, len(picture(0)[1]))
    rows = {"sample_id": ["x"], "position": [0], "modality": ["image"], "source_ref": [ref]}
    pq.write_table(pa.table(rows), tmp_path / "x.parquet")
    assert "'plugin://books/de/a.tar' is outside the configured roots" in line(
        str(tmp_path / "x.parquet"), books.name
    )
