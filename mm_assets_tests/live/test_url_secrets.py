"""Raw shards behind a login, and behind signed URLs: they are read, and no file or line tells how."""

from __future__ import annotations

import base64
import re
import sqlite3
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets import InterleavedWebdatasetReader, materialize
from mm_assets.formats.names import FORMATS
from mm_assets_tests.cli.commands import run
from tools.demo import make_shards

SECRETS = re.compile(rb"S3cretPW|S3cretSignature|S3cretKey|bWU6UzNjcmV0UFc")  # the last: as a header has it
SIGNATURE = "X-Amz-Credential=S3cretKey%2Fus&X-Amz-Signature=S3cretSignature"


class _Guarded(SimpleHTTPRequestHandler):
    """Files, and ranges of them, for who has the login or the signature."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        login = self.headers.get("Authorization", "") == f"Basic {base64.b64encode(b'me:S3cretPW').decode()}"
        if not login and "S3cretSignature" not in parse_qs(urlsplit(self.path).query).get(
            "X-Amz-Signature", ""
        ):
            return self._answer(401, b"")
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            names = sorted(entry.name for entry in path.iterdir())
            return self._answer(200, "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode())
        if not path.is_file():
            return self._answer(404, b"")
        data = path.read_bytes()
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
            return self._answer(206, data[start:end], f"bytes {start}-{end - 1}/{len(data)}")
        return self._answer(200, data)

    def _answer(self, status: int, body: bytes, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header(
            "Content-Type", "text/html" if body.startswith(b"<a") else "application/octet-stream"
        )
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that goes away in the middle of an answer."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two shards, a cut one and one of noise."""
    folder = tmp_path_factory.mktemp("served")
    shards = make_shards(folder / "raw", members=2, pdf=0, samples=2)
    (folder / "raw" / "cut.tar").write_bytes(shards[0].read_bytes()[:20_000])
    (folder / "raw" / "noise.tar").write_bytes(b"no tar" * 100)
    return folder


@pytest.fixture
def address(served: Path) -> Iterator[str]:
    """Host and port of a server that nobody has told this process a login of."""
    server = _Server(("127.0.0.1", 0), partial(_Guarded, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Whatever can be read in a folder: file names, bytes, what is packed, rows of tables and databases."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        yield name, name.encode()
        if path.suffix == ".lance" and path.is_dir():
            yield name, str(lance.dataset(str(path)).to_table().to_pylist()).encode()
        if not path.is_file():
            continue
        yield name, path.read_bytes()
        for packed in ("zstd", "gzip"):
            with suppress(OSError), pa.CompressedInputStream(pa.OSFile(str(path)), packed) as stream:
                yield name, stream.read()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield name, f"{table.to_pylist()} {table.schema.metadata}".encode()
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as database:
                for (table_name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                    for row in database.execute(f"SELECT * FROM {table_name}"):
                        yield name, repr(row).encode()
                        for value in (value for value in row if isinstance(value, bytes)):
                            with suppress(zlib.error):
                                yield name, zlib.decompress(value)


def leaks(folder: Path, *done: subprocess.CompletedProcess[str]) -> list[str]:
    """Names of the files in a folder, and streams of commands, that hold what a URL held."""
    found = [name for name, content in contents(folder) if SECRETS.search(content)]
    streams = "".join(each.stdout + each.stderr for each in done).encode()
    return found + [match.decode() for match in SECRETS.findall(streams)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("source", ["login", "signature"])
def test_conversion(address: str, source: str, kind: str, tmp_path: Path) -> None:
    url = {
        "login": f"http://me:S3cretPW@{address}/raw/web-*.tar",
        "signature": f"http://{address}/raw/web-0000{{0,1}}.tar?{SIGNATURE}",
    }[source]
    converted = run("convert", url, tmp_path / "out", "--to", kind, "--workers", "1")
    assert (converted.returncode, converted.stderr) == (0, "")
    assert converted.stdout.startswith(f"{tmp_path / 'out'}: 2 partitions, 4 samples, ")
    seen = run("inspect", url)
    assert (seen.returncode, seen.stderr) == (0, "")
    assert f"http://{address}/raw/web-" in seen.stdout
    assert leaks(tmp_path, converted, seen) == []


@pytest.mark.parametrize("name", ["absent", "noise", "cut"])
@pytest.mark.parametrize("is_signed", [True, False])
def test_what_goes_wrong(address: str, name: str, is_signed: bool, tmp_path: Path) -> None:
    wrong = "S3cretPW" if name != "absent" else "S3cretPWs"
    url = (
        f"http://{address}/raw/{name}.tar?{SIGNATURE}"
        if is_signed
        else f"http://me:{wrong}@{address}/raw/{name}.tar"
    )
    out = tmp_path / "out"
    done = [
        run("inspect", url),
        run("convert", url, out, "--to", "parquet"),
        run("verify", url, url),
        run("convert", url, out, "--to", "parquet", "--on-materialize-error", "warn"),
        run("inspect", url, url),
    ]
    assert all(each.returncode and f"http://{address}/raw/{name}.tar" in each.stderr for each in done)
    assert leaks(tmp_path, *done) == []


@pytest.mark.parametrize("login", ["", "me:wrong@"])
def test_a_login_that_is_missing_or_refused(address: str, login: str, tmp_path: Path) -> None:
    url, shown = f"http://{login}{address}/raw/web-00000.tar", f"http://{address}/raw/web-00000.tar"
    refused = f"{shown}: login missing or refused: write USER:PASSWORD@ before the host, or see [stores] in"
    settings = {"MM_STORAGE": str(tmp_path / "storage"), "DAGSTER_HOME": str(tmp_path / "home")}
    planned = run("run", "--dry-run", MM_RAW_SHARDS=url, **settings)
    assert planned.returncode == 1
    assert planned.stderr.startswith(f"mm-assets: no raw shards: {refused}")
    assert refused in run("convert", url, tmp_path / "out", "--to", "parquet").stderr
    absent = f"http://me:S3cretPW@{address}/raw/absent.tar"
    line = run("run", "--dry-run", MM_RAW_SHARDS=absent, **settings).stderr
    assert line.startswith(f"mm-assets: no raw shards: http://{address}/raw/absent.tar: no such file")


def test_run_of_the_graph(address: str, tmp_path: Path) -> None:
    login = f"http://me:S3cretPW@{address}/raw"
    settings = {
        "MM_RAW_SHARDS": f"{login}/{{web-00000,cut,absent}}.tar "
        f"'http://{address}/raw/web-00001.tar?{SIGNATURE}'",
        "MM_STORAGE": str(tmp_path / "storage"),
        "DAGSTER_HOME": str(tmp_path / "home"),
        "MM_WORKERS": "1",
    }
    done = [
        run(*command, **settings)
        for command in (["run"], ["run", "--dry-run"], ["prove"], ["run", "--failed"])
    ]
    assert [each.returncode for each in done] == [1, 0, 0, 1]
    assert "NOT PROVEN: 2 of 4 shards in all 5 outputs" in done[0].stdout
    assert "shard 'cut' of curated_parquet: " in done[0].stdout
    assert leaks(tmp_path, *done) == []
    refs = pq.read_table(tmp_path / "storage" / "curated", columns=["source_ref"]).column(0).to_pylist()
    assert {re.search(r'"path": "([^"]*)"', ref)[1] for ref in refs if ref} == {  # type: ignore[index]
        f"http://{address}/raw/web-0000{number}.tar" for number in (0, 1)
    }


def test_bytes_that_are_fetched_later(address: str) -> None:
    """A locator without the login, or the signature, is followed in the process that was given them."""
    for url in (
        f"http://me:S3cretPW@{address}/raw/web-00000.tar",
        f"http://{address}/raw/web-00001.tar?{SIGNATURE}",
    ):
        (batch,) = InterleavedWebdatasetReader(url, materialize=False)
        (whole,) = InterleavedWebdatasetReader(url)
        assert "S3cret" not in str(batch.data.to_pylist()) + str(batch.source_files)
        assert materialize(batch).data.equals(whole.data)


def test_login_in_the_settings_file(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mm_assets.toml").write_text(
        f'[stores."http://{address}/raw"]\nusername = "me"\npassword = "S3cretPW"\n'
    )
    monkeypatch.chdir(tmp_path)
    done = run("inspect", f"http://{address}/raw/web-00000.tar")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 partition, 2 samples" in done.stdout
