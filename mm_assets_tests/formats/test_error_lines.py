"""An error is one line that says where, what, and what to do: whoever raised it, and however little it
knew.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ProfileNotFound,
    SSLError,
)
from s3fs.errors import translate_boto_error

from mm_assets.storage.errors import StoreError, cause_line, error_line, located, readable_store_errors

URL = "s3://bucket/a.tar"


def raised(action: Callable[[], object], place: str | None = None) -> Exception:
    """What an action raises, within the place if one is given."""
    with pytest.raises(Exception) as caught:
        if place is None:
            action()
        else:
            with located(place):
                action()
    return caught.value


def fails(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def answer(code: str) -> Exception:
    """What s3fs makes of an answer of a server."""
    return translate_boto_error(
        ClientError({"Error": {"Code": code, "Message": "in the server's own words"}}, "ListObjectsV2")
    )


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (lambda folder: (folder / "none").read_bytes(), "{folder}/none: no such file or folder"),
        (lambda folder: os.listdir(os.fsencode(folder / "none")), "{folder}/none: no such file or folder"),
        (
            lambda folder: (folder / "file" / "x").mkdir(),
            "{folder}/file/x: a part of this path is a file, not a folder",
        ),
        (lambda folder: os.makedirs(folder / "file", exist_ok=True), "{folder}/file: a file, not a folder"),
        (lambda folder: folder.read_bytes(), "{folder}: a folder, not a file"),
        (
            lambda folder: (folder / ("x" * 300)).read_bytes(),
            "{folder}/" + "x" * 300 + ": the name is too long",
        ),
        (lambda folder: (folder / "file").rename(folder / "taken"), "{folder}/taken: a folder, not a file"),
        (lambda folder: pa.OSFile(str(folder / "none")), "{folder}/none: no such file or folder"),
        (
            lambda folder: lance.write_dataset(pa.table({"a": [1]}), str(folder / "file" / "x")),
            "{folder}: a part of this path is a file",
        ),
        (
            lambda folder: lance.dataset(str(folder / "t")),
            "Dataset at path {bare}/t was not found: Not found: {bare}/t/_versions",
        ),
        (
            lambda _: "good-\udcff".encode(),
            r"'good-\udcff': a name that is not UTF-8; rename the file or folder",
        ),
    ],
)
def test_errors_of_the_system_name_the_file_in_words(
    tmp_path: Path, action: Callable[[Path], object], line: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    found = error_line(raised(lambda: action(tmp_path), str(tmp_path)))
    assert found.startswith(line.format(folder=tmp_path, bare=str(tmp_path).lstrip("/")))
    assert "Errno" not in found and ".rs:" not in found and "\n" not in found


def test_a_full_disk_is_told_with_the_folder(tmp_path: Path) -> None:
    def fill() -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    assert error_line(raised(fill)) == "No space left on device"
    assert (
        error_line(raised(fill, f"{tmp_path}/a.parquet"))
        == f"{tmp_path}/a.parquet: no space left on the device"
    )
    temporary = f"the folder {tempfile.gettempdir()} for temporary files (TMPDIR)"
    assert error_line(raised(fill, URL)) == f"{temporary}: no space left on the device"
    arrow = raised(lambda: pa.OSFile("/dev/full", "wb").write(b"x" * 100_000), str(tmp_path))
    assert error_line(arrow) == f"{tmp_path}: no space left on the device"


def test_names_of_temporary_files_are_those_of_their_folder(tmp_path: Path) -> None:
    error = PermissionError(
        errno.EACCES, "Permission denied", f"{tmp_path}/.a.parquet.0bbfd16a-17-0123456789ab.tmp"
    )
    assert error_line(error) == f"{tmp_path}: permission denied"


def test_the_innermost_place_counts_and_a_file_that_is_named_before_it() -> None:
    def inner() -> None:
        with located("inner"):
            raise OSError("lost")

    assert error_line(raised(inner, "outer")) == "inner: lost"
    assert error_line(raised(fails(OSError("inner: lost")), "inner")) == "inner: lost"
    assert cause_line(raised(inner), "inner") == "lost"
    assert (
        error_line(raised(fails(ValueError("a.tar: byte 5: damaged")), "outer")) == "a.tar: byte 5: damaged"
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            NoCredentialsError(),
            f"{URL}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        ),
        (ProfileNotFound(profile="x"), f"{URL}: no such profile in the AWS configuration: see AWS_PROFILE"),
        (
            EndpointConnectionError(endpoint_url="http://127.0.0.1:1/bucket?list-type=2"),
            f"{URL}: no connection to http://127.0.0.1:1: is AWS_ENDPOINT_URL right, and the server up?",
        ),
        (
            SSLError(endpoint_url="https://h:1/b", error="x"),
            f"{URL}: https://h:1 does not speak TLS, or with a certificate that is not",
        ),
        (answer("ExpiredToken"), f"{URL}: the credentials have expired: get new ones"),
        (
            answer("InvalidAccessKeyId"),
            f"{URL}: the server does not know this key: see AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
        ),
        (
            answer("SignatureDoesNotMatch"),
            f"{URL}: the secret is not that of the key: see AWS_SECRET_ACCESS_KEY",
        ),
        (answer("AccessDenied"), f"{URL}: permission denied: the credentials do not allow it, or are wrong"),
        (answer("NoSuchBucket"), f"{URL}: no such bucket"),
        (answer("PermanentRedirect"), f"{URL}: the bucket is in another region: set AWS_REGION"),
        (answer("{odd}"), f"{URL}: An error occurred ({{odd}})"),
        (answer("SlowDown"), f"{URL}: the store asks for fewer requests, time and again: try again later"),
        (answer("InternalError"), f"{URL}: the store failed, time and again: try again later"),
        (answer("NotSignedUp"), f"{URL}: in the server's own words"),
        (
            OSError(
                "LanceError(IO): Generic S3 error: Error performing PUT http://h:1/b/a.lance in 2ms - Server "
                "returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>, "
                "/rust/src/io.rs:12:3"
            ),
            f"{URL}: permission denied: the credentials do not allow it, or are wrong",
        ),
        (
            OSError(
                "LanceError(IO): Generic S3 error: Error performing GET http://h:1/b/a.lance in 2s, after 7 "
                "retries, max_retries: 7 - HTTP error: error sending request"
            ),
            f"{URL}: no connection to http://h:1: is AWS_ENDPOINT_URL right, and the server up?",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_of_stores_say_what_to_do(error: Exception, line: str) -> None:
    found = error_line(raised(fails(error), URL))
    assert found.startswith(line)

    def told() -> None:
        with readable_store_errors(), located(URL):
            raise error

    in_words = raised(told, "s3://elsewhere")
    assert isinstance(in_words, StoreError) and str(in_words) == error_line(in_words) == found


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\n lines"), "two lines"),
        (
            MemoryError(),
            "out of memory: use fewer workers (MM_WORKERS, --workers), or smaller batches "
            "(--max-batch-bytes)",
        ),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (ValueError(), "ValueError"),
        (pa.ArrowNotImplementedError("no such cast"), "ArrowNotImplementedError: no such cast"),
    ],
)
def test_of_other_errors_the_class_is_told_unless_data_cause_it(error: BaseException, line: str) -> None:
    assert error_line(error) == line
