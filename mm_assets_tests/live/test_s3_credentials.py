"""Credentials that come or change while a process runs, as those that a tool renews every hour."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.exceptions import NoCredentialsError

from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import filesystem, open_binary
from mm_assets.storage.s3 import S3FileSystem
from mm_assets.storage.stamps import files_in
from mm_assets_tests.aws_configuration import use_no_credentials
from mm_assets_tests.free_port import free_port
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.live.test_s3_lines import WRONG

pytestmark = pytest.mark.clients

SIZE = 40 << 20  # more than is read ahead


class CredentialsFile:
    """The credentials file of the AWS configuration."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def renew(self, key: str, secret: str) -> None:
        """Replace the file by another one, as tools do."""
        new = self._path.with_suffix(".new")
        new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        new.replace(self._path)


@pytest.fixture
def credentials_file(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialsFile:
    """No other credentials than those of a file, which is not there yet."""
    use_no_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("OF_A_TOOL", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "$OF_A_TOOL/credentials")
    return CredentialsFile(tmp_path / "credentials")


@pytest.fixture(scope="module")
def place(s3: S3Server) -> str:
    bucket = s3.new_bucket()
    s3.filesystem().pipe_file(f"{bucket}/in/a.tar", bytes(SIZE))
    return f"s3://{bucket}/in"


def told(place: str) -> str:
    """The names of the files, or the line that says why they are not known."""
    try:
        return " ".join(files_in(place))
    except (OSError, NoCredentialsError) as error:
        return error_line(error)


def test_new_credentials_count_at_once(
    s3: S3Server, place: str, credentials_file: CredentialsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(place) == f"{place}: {WRONG['no credentials'][1]}"
    credentials_file.renew(s3.key, "w" * len(s3.secret))
    assert told(place) == f"{place}: {WRONG['secret'][1]}"
    credentials_file.renew(s3.key, s3.secret)
    assert told(place) == "a.tar"
    credentials_file.renew("nobody", s3.secret)
    assert told(place) == f"{place}: {WRONG['key'][1]}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    assert told(place) == "a.tar"


def test_open_files_and_stores_go_on_with_new_credentials(
    s3: S3Server, place: str, credentials_file: CredentialsFile
) -> None:
    credentials_file.renew(s3.key, s3.secret)
    store = SurveyStore(place)
    assert store.partitions() == []
    with open_binary(f"{place}/a.tar") as file:
        assert file.read(1) == b"\0"
        credentials_file.renew("nobody", s3.secret)
        with pytest.raises(OSError, match="access key ID you provided does not exist"):
            store.partitions()
        credentials_file.renew(s3.key, s3.secret)
        gc.collect()
        assert store.partitions() == []
        assert file.read() == bytes(SIZE - 1)


def test_file_systems_with_old_credentials_are_not_kept(
    s3: S3Server, place: str, credentials_file: CredentialsFile
) -> None:
    for _ in range(5):
        credentials_file.renew(s3.key, s3.secret)
        assert told(place) == "a.tar"
    gc.collect()
    assert list(S3FileSystem._cache.values()) == [filesystem(place)[0]]


class _MetadataServer(BaseHTTPRequestHandler):
    """What machines of Amazon ask for their credentials."""

    credentials = ("", "")

    def do_PUT(self) -> None:
        self._answer("a token")

    def do_GET(self) -> None:
        key, secret = self.credentials
        found = {"Code": "Success", "AccessKeyId": key, "SecretAccessKey": secret, "Token": ""}
        found["Expiration"] = "2999-01-01T00:00:00Z"
        is_list = self.path.rstrip("/").endswith("security-credentials")
        self._answer("a-role" if is_list else json.dumps(found))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def metadata_server(port: int, s3: S3Server) -> Iterator[None]:
    handler = type("Handler", (_MetadataServer,), {"credentials": (s3.key, s3.secret)})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_a_metadata_server_may_come_late(
    s3: S3Server, place: str, credentials_file: CredentialsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}/")
    assert told(place) == f"{place}: {WRONG['no credentials'][1]}"
    with metadata_server(port, s3):
        assert told(place) == "a.tar"
