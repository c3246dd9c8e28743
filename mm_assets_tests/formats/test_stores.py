"""Each location of an object store has its own options, in this process and in workers."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets.pool.workers import WorkerPool
from mm_assets.storage import (
    canonical_url,
    clean_url,
    fsspec_arguments,
    is_store,
    lance_arguments,
    opened_url,
    options_of,
    stores,
    use_stores,
    without_secrets,
)
from mm_assets.storage.files import filesystem

KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}


@pytest.fixture(autouse=True)
def no_others() -> Iterator[None]:
    use_stores({})
    yield
    use_stores({})


def test_the_longest_location_counts() -> None:
    use_stores({"s3://a/": {"profile_name": "whole"}, "s3a://a/part": {"profile_name": "part"}})
    found = {
        uri: options_of(uri).get("profile_name")
        for uri in (
            "s3://a",
            "s3://a/",
            "s3://a/x",
            "s3a://a/part",
            "s3://a/part/x",
            "s3://a/parts",
            "s3://ab",
        )
    }
    assert found == {
        "s3://a": "whole",
        "s3://a/": "whole",
        "s3://a/x": "whole",
        "s3a://a/part": "part",
        "s3://a/part/x": "part",
        "s3://a/parts": "whole",
        "s3://ab": None,
    }


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3a://bucket/a/", "s3://bucket/a/"),
        ("gcs://bucket", "gs://bucket"),
        ("abfs://container/a", "az://container/a"),
        ("https://host/a", "https://host/a"),
        ("gcs", "gcs"),
        ("/a/b/", "/a/b/"),
    ],
)
def test_one_scheme_of_a_store(location: str, expected: str) -> None:
    assert canonical_url(location) == expected


def test_options_of_the_caller_come_first() -> None:
    use_stores({"s3://a": KEYS})
    fs, path = filesystem("s3://a/x", {"key": "other", "secret": "s"})
    assert (fs.key, path) == ("other", "a/x")
    assert filesystem("s3://a/x")[0].key == "id"
    assert filesystem("s3://b/x")[0].key is None


def test_as_arguments_of_the_clients() -> None:
    use_stores(
        {
            "s3://a": {**KEYS, "endpoint_url": "http://127.0.0.1:1", "region_name": "here"},
            "gs://b": {"token": "anon"},
        }
    )
    assert fsspec_arguments("s3://a/x") == {
        "key": "id",
        "secret": "secret",
        "endpoint_url": "http://127.0.0.1:1",
        "client_kwargs": {"region_name": "here"},
    }
    assert lance_arguments("s3://a/x.lance", {}) == {
        **KEYS,
        "aws_endpoint": "http://127.0.0.1:1",
        "aws_region": "here",
        "allow_http": "true",
    }
    assert fsspec_arguments("gs://b/x") == lance_arguments("gs://b/x", {}) == {"token": "anon"}
    assert fsspec_arguments("/local/folder") == {}


def test_a_profile_for_lance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text(
        "[curation]\naws_access_key_id = one\naws_secret_access_key = two\naws_session_token = three\n"
    )
    (tmp_path / "config").write_text("[profile curation]\nregion = there\n[profile empty]\nregion = here\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    use_stores({"s3://a": {"profile_name": "curation", "region_name": "here"}})
    of_profile = {
        "aws_access_key_id": "one",
        "aws_secret_access_key": "two",
        "aws_session_token": "three",
    }
    assert lance_arguments("s3://a/x.lance", {}) == {**of_profile, "aws_region": "here"}
    # As for the clients of Python: the location, then the environment, then the profile; one source of keys.
    use_stores({"s3://a": {"profile_name": "curation"}})
    others = {"aws_access_key_id": "env", "aws_secret_access_key": "env", "aws_endpoint": "http://env"}
    assert lance_arguments("s3://a/x.lance", others) == {
        **of_profile,
        "aws_region": "there",
        "aws_endpoint": "http://env",
        "allow_http": "true",
    }
    use_stores({"s3://a": {"profile_name": "nobody"}})
    with pytest.raises(ValueError, match=r"s3://a/x\.lance: profile 'nobody' of the AWS configuration: "):
        lance_arguments("s3://a/x.lance", {})


def test_lance_gets_no_mixture_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stores({"s3://a": KEYS})
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    with pytest.raises(ValueError, match=r"s3://a/x\.lance: Lance would take AWS_SESSION_TOKEN"):
        lance_arguments("s3://a/x.lance", {})
    assert lance_arguments("s3://b/x.lance", {"aws_region": "r"}) == {"aws_region": "r"}


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket", True),
        ("gs://bucket/part/", True),
        ("file:///folder", False),
        ("/folder", False),
        ("bucket", False),
        ("zip://a::s3://bucket", False),
        ("S3://bucket", False),
        ("s3://bucket/*", False),
        ("s3://{a,b}", False),
        ("s3://", False),
    ],
)
def test_what_is_a_store(location: str, expected: bool) -> None:
    assert is_store(location) == expected


def _profile_of(uri: str) -> str | None:
    return options_of(uri).get("profile_name")


@pytest.mark.parametrize("may_fork", [True, False])
def test_workers_have_them(may_fork: bool) -> None:
    use_stores({"s3://a": {"profile_name": "curation"}})
    with WorkerPool(1, may_fork=may_fork) as pool:
        assert list(pool.map(_profile_of, ["s3://a/x"])) == [("s3://a/x", "curation")]
    assert stores()["s3://a"] == {"profile_name": "curation"}


SIGNED = "https://h.test/c/a.tar?sv=2022-11-02&se=2026-01-01&sr=c&sp=r&sig=aB%2F1"


@pytest.mark.parametrize(
    ("given", "clean", "opened", "login"),
    [
        ("http://me:p%40ss@a.test:80/x.tar", "http://a.test:80/x.tar", None, "me:p@ss"),
        ("http://me:p@ss@b.test/x.tar", "http://b.test/x.tar", None, "me:p@ss"),
        ("http://me:p/ss@c.test/x.tar", "http://c.test/x.tar", None, "me:p/ss"),
        ("https://ghp_1@d.test/x.tar", "https://d.test/x.tar", None, "ghp_1:"),
        ("pdf=http://me:pw@e.test/x", "pdf=http://e.test/x", None, "me:pw"),
        (SIGNED, "https://h.test/c/a.tar", SIGNED, None),
        (f"simplecache::{SIGNED}", "simplecache::https://h.test/c/a.tar", f"simplecache::{SIGNED}", None),
        *(
            (f"http://f.test/{name}.tar?{query}", f"http://f.test/{name}.tar", None, None)
            for name, query in {
                "aws": "X-Amz-Credential=K%2F1&X-Amz-Expires=60&X-Amz-Security-Token=t&X-Amz-Signature=s",
                "aws2": "AWSAccessKeyId=K&Signature=s&Expires=1",
                "google": "X-Goog-Algorithm=a&X-Goog-Signature=s",
                "cloudfront": "Policy=p&Signature=s&Key-Pair-Id=K",
                "token": "token=s",
            }.items()
        ),
        ("http://g.test/get?token=S&file=a.tar", "http://g.test/get?file=a.tar", None, None),
        *(
            (url, url, url, None)
            for url in (
                "http://g.test/x.tar?version=2&page=1",
                "http://g.test:80/x@1.0/y.tar",
                "http://[::1]:80/x@y.tar",
                "az://container@account.test/x",
                "github://org:repository@main/x",
                "s3://arn:aws:s3:us-east-1:1:accesspoint/my@x",
                "s3://bucket/x?token=1",
                "sftp://me@host/x",
                "/data/a:b@c/x.tar",
                "file:///data/http://a:b@c/x?sig=1",
            )
        ),
    ],
)
def test_what_a_url_holds_of_credentials(
    given: str, clean: str, opened: str | None, login: str | None
) -> None:
    """It is out of the URL from where that comes in, and back where it is opened."""
    assert clean_url(given) == clean_url(clean) == clean
    assert opened_url(clean) == (opened or (clean if login else given))
    if login is not None:
        header = fsspec_arguments(clean[clean.index("http") :])["headers"]["Authorization"]
        assert base64.b64decode(header.removeprefix("Basic ")).decode() == login


def test_brace_list_of_signed_urls() -> None:
    assert clean_url("http://b.test/{0..1}.tar?sig=7") == "http://b.test/{0..1}.tar"
    assert opened_url("http://b.test/1.tar") == "http://b.test/1.tar?sig=7"


def test_workers_get_what_urls_held() -> None:
    clean_url("http://me:pw@w.test/x.tar")
    given = stores()
    assert given["http://w.test"] == {"username": "me", "password": "pw"}


@pytest.mark.parametrize("url", ["s3://KEY:SECRET@bucket/x", "gs://KEY:SECRET@bucket/x"])
def test_key_in_the_url_of_a_bucket_is_refused(url: str) -> None:
    scheme = url.partition("://")[0]
    with pytest.raises(
        ValueError, match=rf"^{scheme}://bucket/x: a key or a password in the URL of a bucket"
    ):
        filesystem(url)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'http://me:pw@h/x' and s3://K:S@b/y", "a 'http://h/x' and s3://b/y"),
        (f"403, url='{SIGNED}'", "403, url='https://h.test/c/a.tar'"),
        ('["http://h/x?sig=1","http://h/y?a=1&sig=2"]', '["http://h/x","http://h/y?a=1"]'),
        ("mail me@h or see http://h/?q=token", "mail me@h or see http://h/?q=token"),
        ("a" * 100_000 + "://" + ":" * 100_000, "a" * 100_000 + "://" + ":" * 100_000),
    ],
)
def test_texts_are_told_without_what_urls_hold(text: str, expected: str) -> None:
    assert without_secrets(text) == expected


def test_login_of_a_web_server_in_the_settings_file() -> None:
    use_stores({"https://h.test/data": {"username": "me", "password": "pw"}})
    assert fsspec_arguments("https://h.test/data/x.tar") == {"headers": {"Authorization": "Basic bWU6cHc="}}
    assert fsspec_arguments("https://h.test/x.tar") == {}
