"""The proxy that spoils requests: without faults nothing differs, and each fault is what it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.config import Config

from mm_assets_tests.live import faulty_proxy as faults
from mm_assets_tests.live.faulty_proxy import EXPIRED, READ_ONLY, Faults, FaultyProxy
from mm_assets_tests.live.s3_server import REGION, S3Server

pytestmark = pytest.mark.clients


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with faults.faulty_proxy(s3.endpoint) as proxy:
        yield proxy


def _client(server: S3Server, **config: Any) -> Any:
    """A client that tries once."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
        region_name=REGION,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=1, **config),
    )


@pytest.fixture
def client(s3: S3Server, proxy: FaultyProxy) -> Any:
    return _client(replace(s3, endpoint=proxy.endpoint))


@pytest.fixture
def bucket(s3: S3Server) -> str:
    bucket = s3.new_bucket()
    s3.filesystem().pipe_file(f"{bucket}/there", b"as it was" * 1000)
    return bucket


def test_without_faults(s3: S3Server, proxy: FaultyProxy, client: Any, bucket: str, tmp_path: Path) -> None:
    through = replace(s3, endpoint=proxy.endpoint).filesystem()
    big = tmp_path / "big"
    big.write_bytes(os.urandom(11 << 20))
    through.put_file(str(big), f"{bucket}/parts/big", chunksize=5 << 20)
    assert through.cat_file(f"{bucket}/parts/big") == big.read_bytes()
    assert through.cat_file(f"{bucket}/parts/big", start=100, end=6 << 20) == big.read_bytes()[100 : 6 << 20]
    for number in range(12):
        through.pipe_file(f"{bucket}/many/{number:02}", bytes([number]))
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix="many/", PaginationConfig={"PageSize": 5}
    )
    assert [found["Key"] for page in pages for found in page["Contents"]] == [
        f"many/{number:02}" for number in range(12)
    ]
    through.rm([f"{bucket}/many/{number:02}" for number in range(12)])
    assert s3.filesystem().find(bucket) == [f"{bucket}/parts/big", f"{bucket}/there"]
    with pytest.raises(client.exceptions.ClientError, match="404"):
        client.head_object(Bucket=bucket, Key="many/00")
    assert proxy.requests["PUT part"] == 3 and proxy.requests["PUT"] == 12 and proxy.requests["LIST"] >= 3
    assert proxy.requests["POST multipart"] == proxy.requests["POST complete"] == 1
    assert proxy.happened == {}


def test_chunked_uploads_and_connections_that_stay(
    s3: S3Server, proxy: FaultyProxy, client: Any, bucket: str
) -> None:
    chunks = [os.urandom(size) for size in (1, 70_000, 3)]
    with requests.Session() as session:  # one connection
        url = client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "chunked"})
        for _ in range(3):
            assert session.put(url, data=iter(chunks), timeout=10).status_code == 200
        assert session.head(f"{proxy.endpoint}/{bucket}/none", timeout=10).status_code in (403, 404)
        url = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "chunked"})
        assert session.get(url, timeout=10).content == b"".join(chunks)
        assert session.put(url, data=b"x", timeout=10, headers={"Expect": "100-continue"}).status_code == 403
    assert s3.filesystem().cat_file(f"{bucket}/chunked") == b"".join(chunks)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (faults.SLOW_DOWN, "SlowDown"),
        (faults.INTERNAL_ERROR, "InternalError"),
        (faults.RESET, "Connection was closed|Could not connect|Connection reset"),
        (faults.CUT, "IncompleteRead"),
        (faults.SILENCE, "Read timeout"),
        (faults.ANSWER_LOST, "Connection was closed|Could not connect|Connection reset"),
    ],
)
def test_each_fault(proxy: FaultyProxy, client: Any, bucket: str, kind: str, error: str) -> None:
    proxy.faults = Faults(1.0, (kind,), at_most=1, silences=1)
    with pytest.raises(Exception, match=error):
        client.get_object(Bucket=bucket, Key="there")["Body"].read()
    assert proxy.happened == {kind: 1}
    assert client.get_object(Bucket=bucket, Key="there")["Body"].read() == b"as it was" * 1000


def test_a_lost_answer_is_that_of_a_request_that_was_carried_out(
    s3: S3Server, proxy: FaultyProxy, client: Any, bucket: str
) -> None:
    for kind in (faults.RESET, faults.ANSWER_LOST):
        proxy.reset(Faults(1.0, (kind,)))
        with pytest.raises(Exception, match="closed|reset"):
            client.put_object(Bucket=bucket, Key=kind, Body=b"new")
    assert s3.filesystem().find(bucket) == [f"{bucket}/{faults.ANSWER_LOST}", f"{bucket}/there"]


def test_faults_are_limited_and_as_many_as_asked_for(proxy: FaultyProxy, client: Any, bucket: str) -> None:
    proxy.faults = Faults(0.2, (faults.SLOW_DOWN,), methods=frozenset(["PUT"]), paths="spoilt", seed=1)
    failed = 0
    for number in range(80):
        client.put_object(Bucket=bucket, Key=f"sound/{number}", Body=b"")
        client.head_object(Bucket=bucket, Key=f"sound/{number}")
        try:
            client.put_object(Bucket=bucket, Key=f"spoilt/{number}", Body=b"")
        except client.exceptions.ClientError:
            failed += 1
    assert 4 < failed < 36 and proxy.happened == {faults.SLOW_DOWN: failed}


def test_refusals(proxy: FaultyProxy, client: Any, bucket: str) -> None:
    proxy.refusal = EXPIRED
    with pytest.raises(client.exceptions.ClientError, match="ExpiredToken"):
        client.get_object(Bucket=bucket, Key="there")
    proxy.refusal = READ_ONLY
    with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.put_object(Bucket=bucket, Key="there", Body=b"")
    assert client.get_object(Bucket=bucket, Key="there")["Body"].read() == b"as it was" * 1000
