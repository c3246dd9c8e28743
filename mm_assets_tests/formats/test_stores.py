"""Each location of an object store has its own options, in this process and in workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets.formats.storage import filesystem
from mm_assets.formats.stores import (
    canonical_url,
    fsspec_arguments,
    is_store,
    lance_arguments,
    options_of,
    stores,
    use_stores,
)
from mm_assets.workers import WorkerPool

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
    assert stores() == {"s3://a": {"profile_name": "curation"}}
