"""How the file system of ``s3://`` URLs repeats requests, and that it takes no failure for absence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.materialize import open_fetcher
from mm_assets.formats.parquet import column_chunks, open_parquet
from mm_assets.storage import s3 as client
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import (
    exists,
    filesystem,
    open_binary,
    publish_bytes,
    read_bytes,
    remove,
    size_of,
)
from mm_assets.storage.listing import expand, names_in
from mm_assets.storage.s3 import S3FileSystem
from mm_assets.storage.small_files import small_object
from mm_assets.storage.stamps import stat_of_written, stat_outputs
from mm_assets_tests.live.faulty_proxy import (
    ANSWER_LOST,
    CUT,
    DOWN,
    INTERNAL_ERROR,
    KINDS,
    RESET,
    SILENCE,
    SLOW_DOWN,
    Faults,
    FaultyProxy,
    faulty_proxy,
)
from mm_assets_tests.live.s3_server import REGION, S3Server

pytestmark = pytest.mark.clients

CONTENT = os.urandom(3 << 20)
NUMBERS = [1, 2, 3]
ATTEMPTS = 3


@dataclass
class Place:
    """A folder with a few objects, on a store behind a proxy."""

    proxy: FaultyProxy
    url: str
    options: dict[str, Any]

    @property
    def file(self) -> str:
        return f"{self.url}/a.tar"

    @property
    def fs(self) -> S3FileSystem:
        fs = filesystem(self.url, self.options)[0]
        fs.invalidate_cache()
        return fs

    @property
    def path(self) -> str:
        return self.file.removeprefix("s3://")


@pytest.fixture(scope="module")
def behind_proxy(s3: S3Server) -> Iterator[Place]:
    bucket = s3.new_bucket()
    for name in ("a.tar", "b.tar", "deep/c.tar", "deep/deeper/d.tar"):
        s3.filesystem().pipe_file(f"{bucket}/in/{name}", CONTENT)
    table = pa.BufferOutputStream()
    rows = pa.table({"n": NUMBERS, "blob": [CONTENT] * len(NUMBERS)})
    pq.write_table(rows, table, row_group_size=2)  # of several row groups the ranges are fetched at once
    s3.filesystem().pipe_file(f"{bucket}/table.parquet", table.getvalue().to_pybytes())
    with faulty_proxy(s3.endpoint) as proxy:
        options = {
            "key": s3.key,
            "secret": s3.secret,
            "client_kwargs": {"endpoint_url": proxy.endpoint, "region_name": REGION},
            "config_kwargs": {"read_timeout": 1},
        }
        yield Place(proxy, f"s3://{bucket}/in", options)


@pytest.fixture
def place(behind_proxy: Place) -> Place:
    behind_proxy.proxy.reset()
    behind_proxy.fs.invalidate_cache()
    return behind_proxy


def _range(place: Place) -> bytes:
    with open_binary(place.file, place.options) as file:
        file.seek(1 << 20)
        return file.read(1000)


def _column(place: Place) -> list[int]:
    url = f"{place.url.removesuffix('/in')}/table.parquet"
    file = open_parquet(url, url, place.options, {})
    return [n for chunk in column_chunks(url, file, url, "n", place.options) for n in chunk.to_pylist()]


def _fetched(place: Place) -> Any:
    with open_fetcher(place.file, place.file, place.options) as fetcher:
        return fetcher.fetch([(None, 1 << 20, 1000), (None, 5, 5)])


def _published(place: Place) -> bytes | None:
    publish_bytes(f"{place.url}/new", b"new", place.options)
    return read_bytes(f"{place.url}/new", place.options)


def _removed(place: Place) -> bool:
    publish_bytes(f"{place.url}/passing", b"", place.options)
    remove(f"{place.url}/passing", place.options)
    return exists(f"{place.url}/passing", place.options)


def _listed(what: str) -> Callable[[Place], list[str]]:
    def listed(place: Place) -> list[str]:
        place.fs.invalidate_cache()
        return [
            name.removeprefix(place.url) for name in expand(place.url + what, (".tar",), place.options).files
        ]

    return listed


TARS = ["/a.tar", "/b.tar", "/deep/c.tar", "/deep/deeper/d.tar"]
OPERATIONS: dict[str, tuple[Callable[[Place], Any], Any]] = {
    "a folder": (_listed(""), TARS),
    "a pattern": (_listed("/*.tar"), TARS[:2]),
    "a pattern of folders": (_listed("/*/*.tar"), TARS[2:3]),
    "a pattern of any depth": (_listed("/**/*.tar"), TARS),
    "a brace list": (_listed("/{a,b}.tar"), TARS[:2]),
    "names in a folder": (lambda p: sorted(names_in(p.url, p.options)), ["a.tar", "b.tar", "c.tar", "d.tar"]),
    "size": (lambda p: size_of(p.file, p.options), len(CONTENT)),
    "existence": (lambda p: exists(p.file, p.options), True),
    "absence": (lambda p: exists(f"{p.url}/none", p.options), False),
    "is a file": (lambda p: p.fs.isfile(p.path), True),
    "is a folder": (lambda p: p.fs.isdir(p.url), True),
    "a whole object": (lambda p: read_bytes(p.file, p.options), CONTENT),
    "a range": (_range, CONTENT[1 << 20 :][:1000]),
    "ranges": (_fetched, [CONTENT[1 << 20 :][:1000], CONTENT[5:10]]),
    "a column": (_column, NUMBERS),
    "publishing": (_published, b"new"),
    "removal": (_removed, False),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_spoilt_requests_are_sent_again(place: Place, operation: str) -> None:
    do, expected = OPERATIONS[operation]
    for seed in range(3):
        place.proxy.reset(Faults(0.3, KINDS, seed=seed, silences=1))
        assert do(place) == expected


@pytest.fixture
def by_environment(place: Place, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that the environment gives access to, for a process that has read nothing yet."""
    for name, value in {**s3.env, "AWS_ENDPOINT_URL": place.proxy.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "_failed", set())
    monkeypatch.setattr(client, "_clients", {})
    return f"s3://{s3.new_bucket()}/a"


@pytest.mark.parametrize("nbytes", [0, 1, 5000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_a_small_object_is_read_as_it_is(by_environment: str, nbytes: int) -> None:
    url = f"{by_environment}/plain=1@2+3.bin"
    for content in (os.urandom(nbytes), os.urandom(nbytes)):  # the second in the place of the first
        publish_bytes(url, content)
        assert small_object(url, nbytes) == (content if 0 < nbytes < 1 << 20 else None)


@pytest.mark.parametrize("others", [-1, 1, 100])
def test_a_small_object_of_another_size_is_left_to_the_other_client(by_environment: str, others: int) -> None:
    publish_bytes(f"{by_environment}/x", bytes(5000))
    assert small_object(f"{by_environment}/x", 5000 + others) is None
    assert small_object(f"{by_environment}/x", 5000) == bytes(5000)  # and nothing else is


@pytest.mark.parametrize(
    "name", ["b c", "#1", "1?", "50%25", "ö", "a//b", "/a", "a/", "./a", "a/../b", "a/.", "a/..", "a/./b"]
)
def test_no_request_for_a_name_that_clients_may_spell_another_way(
    place: Place, by_environment: str, name: str
) -> None:
    assert small_object(f"{by_environment}/{name}", 100) is None
    assert place.proxy.requests.total() == 0


@pytest.mark.parametrize("name", [".hidden", "..a", "a..b", "a./b", ".a/b."])
def test_dots_within_names_are_read(by_environment: str, name: str) -> None:
    publish_bytes(f"{by_environment}/{name}", b"content")
    assert small_object(f"{by_environment}/{name}", 7) == b"content"


@pytest.mark.parametrize("kind", [SLOW_DOWN, INTERNAL_ERROR, RESET, CUT, ANSWER_LOST])
def test_a_small_object_is_read_by_the_other_client_after_a_fault(
    place: Place, by_environment: str, kind: str
) -> None:
    content = os.urandom(50_000)
    url = f"{by_environment}/x"
    publish_bytes(url, content)
    assert small_object(url, len(content)) == content
    place.proxy.reset(Faults(1.0, (kind,), methods=frozenset(["GET"]), at_most=20))
    assert small_object(url, len(content)) is None
    place.proxy.reset()
    assert small_object(url, len(content)) is None  # from then on it is not asked
    assert place.proxy.requests.total() == 0
    assert read_bytes(url) == content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL_S3", ""),
        ("AWS_REGION", "us-east-1\n"),
        ("AWS_SECRET_ACCESS_KEY", "a\nb"),
        ("AWS_SECRET_ACCESS_KEY", "another"),
        ("AWS_ENDPOINT_URL", "127.0.0.1:9"),
    ],
)
def test_settings_that_the_client_of_small_objects_cannot_use(
    by_environment: str,
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    publish_bytes(f"{by_environment}/x", b"content")
    assert small_object(f"{by_environment}/x", 7) == b"content"
    before = os.environ.get(name)
    monkeypatch.setenv(name, value)
    assert small_object(f"{by_environment}/x", 7) is None
    assert capfd.readouterr().err == ""  # where Rust would tell of a panic
    monkeypatch.setenv(name, before) if before is not None else monkeypatch.delenv(name)
    assert small_object(f"{by_environment}/x", 7) == b"content"


def test_the_state_of_what_was_put_is_the_listed_one(place: Place, by_environment: str, s3: S3Server) -> None:
    """The store is asked until it has told the etag of a put once; what others put is not taken for ours."""
    urls = [f"{by_environment}/{number}" for number in range(4)]
    filesystem(urls[0])[0].tells_put_etags = False
    asked = []
    for url in urls:
        publish_bytes(url, os.urandom(100))
        place.proxy.reset()
        found = stat_of_written(url)
        asked.append(place.proxy.requests.total())
        assert found == stat_outputs([url])[url] and found is not None
    assert asked == [1, 0, 0, 0]

    for url in urls[:2]:
        publish_bytes(url, b"ours")
    fs, path = filesystem(urls[0])
    s3.filesystem().pipe_file(path, b"of somebody else")
    assert stat_of_written(urls[0]) == stat_of_written(urls[1]) != stat_outputs(urls[:1])[urls[0]]
    # What was told is told once: from then on the store is asked.
    assert stat_of_written(urls[0]) == stat_outputs(urls[:1])[urls[0]]
    fs.rm_file(path)
    assert stat_of_written(urls[0]) is None


def test_what_is_known_of_a_put_ends_with_its_object(by_environment: str, tmp_path: Path) -> None:
    url = f"{by_environment}/x"
    fs, path = filesystem(url)
    publish_bytes(url, b"first")
    assert stat_of_written(url) == stat_outputs([url])[url]
    publish_bytes(url, b"small")
    fs.put_file(str(_file(tmp_path, CONTENT * 4)), path, chunksize=5 << 20)  # in parts
    assert stat_of_written(url) == stat_outputs([url])[url]
    for remove_it in (fs.rm_file, lambda path: fs.rm([path])):
        publish_bytes(url, b"small")
        remove_it(path)
        assert stat_of_written(url) is None


def _file(folder: Path, content: bytes) -> Path:
    (folder / "file").write_bytes(content)
    return folder / "file"


def test_a_store_whose_etags_change_is_asked_each_time(
    place: Place, by_environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{by_environment}/x"
    monkeypatch.setattr(filesystem(url)[0], "tells_put_etags", False)
    note = S3FileSystem._note_change
    other = lambda self, arguments, answer: note(self, arguments, {**answer, "ETag": '"another"'})  # noqa: E731
    monkeypatch.setattr(S3FileSystem, "_note_change", other)
    for content in (b"1", b"2"):
        publish_bytes(url, content)
        assert stat_of_written(url) == stat_outputs([url])[url]


@pytest.mark.parametrize("kind", [SLOW_DOWN, INTERNAL_ERROR, RESET, CUT, SILENCE, ANSWER_LOST])
def test_a_read_gets_over_each_fault(place: Place, kind: str) -> None:
    place.fs.info(place.path)
    place.proxy.reset(Faults(1.0, (kind,), methods=frozenset(["GET"]), at_most=2, silences=2))
    assert read_bytes(place.file, place.options) == CONTENT
    assert place.proxy.happened == {kind: 2}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_failure_looks_like_absence_and_no_retry_is_within_another(
    place: Place, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(ATTEMPTS))
    place.proxy.refusal = DOWN
    with pytest.raises(OSError) as caught:
        OPERATIONS[operation][0](place)
    line = error_line(caught.value)
    assert line.startswith("s3://") and "the store asks for fewer requests, time and again" in line
    # Ranges of one object are asked for at the same time.
    assert place.proxy.requests.total() == ATTEMPTS * (3 if operation == "ranges" else 1)


@pytest.mark.parametrize("operation", ["a whole object", "a range", "ranges", "a column"])
def test_bytes_that_are_not_given_out(place: Place, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(ATTEMPTS))
    place.proxy.reset(Faults(1.0, (INTERNAL_ERROR,), methods=frozenset(["GET"])))
    with pytest.raises(OSError) as caught:
        OPERATIONS[operation][0](place)
    assert error_line(caught.value).endswith(": the store failed, time and again: try again later")


def test_a_store_that_cuts_each_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(ATTEMPTS))
    place.proxy.reset(Faults(1.0, (CUT,), methods=frozenset(["GET"])))
    with pytest.raises(Exception) as caught:
        read_bytes(place.file, place.options)
    assert "the store broke off its answers" in error_line(caught.value)
    assert place.proxy.requests["GET"] <= 5


def test_an_upload_in_parts_whose_last_answer_is_lost(place: Place, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(CONTENT * 4)
    place.proxy.reset(Faults(1.0, (ANSWER_LOST,), methods=frozenset(["POST"]), paths="uploadId", at_most=1))
    place.fs.put_file(str(big), f"{place.path}.big", chunksize=5 << 20)
    assert place.proxy.happened_to == {"POST complete: answer lost": 1}
    assert place.fs.cat_file(f"{place.path}.big") == CONTENT * 4


def test_a_folder_is_found_writable_without_a_trace(place: Place) -> None:
    before = place.fs.find(place.url)
    place.proxy.reset(Faults(1.0, (ANSWER_LOST,), paths="uploads", methods=frozenset(["POST"]), at_most=2))
    place.fs.refuse_unwritable(f"{place.url}/out")
    place.fs.invalidate_cache()
    assert place.fs.find(place.url) == before
    uploads = place.fs.call_s3("list_multipart_uploads", Bucket=place.url.split("/")[2])
    assert not uploads.get("Uploads")


def test_a_file_is_opened_and_its_end_read_in_one_request(place: Place) -> None:
    publish_bytes(f"{place.url}/small.parquet", CONTENT[:1000], place.options)
    place.proxy.reset()
    with open_binary(f"{place.url}/small.parquet", place.options) as file:
        file.seek(-10, os.SEEK_END)
        assert (file.read(), file.seek(0), file.read()) == (CONTENT[990:1000], 0, CONTENT[:1000])
    assert place.proxy.requests == {"GET": 1}


@pytest.mark.parametrize("name", ["whole", "whole.arrow"])
def test_a_file_longer_than_what_its_opening_asks_for(place: Place, name: str) -> None:
    publish_bytes(f"{place.url}/{name}", CONTENT, place.options)
    with open_binary(f"{place.url}/{name}", place.options) as file:
        assert (file.seek(0, os.SEEK_END), file.seek(1), file.read()) == (len(CONTENT), 1, CONTENT[1:])


def test_an_empty_file_and_none(place: Place) -> None:
    publish_bytes(f"{place.url}/empty.parquet", b"", place.options)
    with open_binary(f"{place.url}/empty.parquet", place.options) as file:
        assert file.read() == b""
    for name in ("none.parquet", "deep"):  # one is a folder
        with pytest.raises(FileNotFoundError):
            open_binary(f"{place.url}/{name}", place.options)


def test_an_object_that_is_replaced_while_it_is_open(place: Place) -> None:
    publish_bytes(f"{place.url}/replaced", CONTENT, place.options)
    with open_binary(f"{place.url}/replaced", place.options) as file:
        assert file.read(10) == CONTENT[:10]
        publish_bytes(f"{place.url}/replaced", CONTENT[::-1], place.options)
        file.seek(2 << 20)
        with pytest.raises(OSError, match="no longer exists"):
            file.read(10)


@pytest.fixture
def by_settings(place: Place, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place, for those who pass no options."""
    for name, value in {**s3.env, "AWS_ENDPOINT_URL": place.proxy.endpoint}.items():
        monkeypatch.setenv(name, value)
    return place


def test_many_outputs_are_looked_up_in_one_request(by_settings: Place) -> None:
    place = by_settings
    uris = [f"{place.url}/many/{number}" for number in range(10)]
    for number, uri in enumerate(uris[:8]):
        for below in ("/x", "/deep/y") if number < 4 else ("",):
            publish_bytes(f"{uri}{below}", uri.encode())
    publish_bytes(f"{uris[8]}/deep/only", b"")
    alone = {uri: stat_outputs([uri])[uri] for uri in uris}
    assert (alone[uris[8]], alone[uris[9]]) == ({"files": {}}, None)
    place.proxy.reset()
    assert stat_outputs(uris) == alone
    assert place.proxy.requests == {"LIST": 1}
    nothing = [f"{place.url}/nothing/{number}" for number in range(8)]
    assert set(stat_outputs(nothing).values()) == {None}


def test_few_outputs_of_a_large_folder_are_not_looked_up_in_its_listing(by_settings: Place) -> None:
    place = by_settings
    with ThreadPoolExecutor(16) as threads:
        names = [f"{place.url}/large/{number:04}" for number in range(300)]
        list(threads.map(lambda name: publish_bytes(name, name.encode()), names))
    place.proxy.reset()
    found = stat_outputs(names[-8:])
    assert [stat and stat["size"] for stat in found.values()] == [len(names[0])] * 8
    assert place.proxy.requests == {"LIST": 1, "HEAD": 8}
