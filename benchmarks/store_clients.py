"""Whole objects from and to an S3 store through clients of it: the store's own speed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import Work

PART = 8 << 20
AT_ONCE = 4  # parts of an object
_OBJECTS = 2  # at a time, as there are workers on two cores

Get = Callable[[str, str], None]  # key, file
Put = Callable[[str, str], None]  # file, key

CLIENTS = ("s3fs", "boto3", "pyarrow", "obstore")


def prepare(client: str, keys: Sequence[str], bucket: str, folder: str, nbytes: int) -> Work:
    """Get objects of a bucket into files of a folder, and put ``nbytes`` of them back as other objects."""
    get, put = _client(client, bucket)
    os.makedirs(folder, exist_ok=True)
    share = nbytes // len(keys)

    def copy(key: str) -> int:
        file = os.path.join(folder, key.replace("/", "-"))
        get(key, file)
        size = os.path.getsize(file)
        if nbytes:
            os.truncate(file, min(share, size))
            put(file, f"copy/{client}/{key}")
        Path(file).unlink()
        return size

    def work() -> dict[str, Any]:
        with ThreadPoolExecutor(_OBJECTS) as threads:
            return {"nbytes": sum(threads.map(copy, keys))}

    return work


def _client(name: str, bucket: str) -> tuple[Get, Put]:
    return {"s3fs": _s3fs, "boto3": _boto3, "pyarrow": _pyarrow, "obstore": _obstore}[name](bucket)


def _s3fs(bucket: str) -> tuple[Get, Put]:
    import s3fs

    store = s3fs.S3FileSystem()

    def get(key: str, file: str) -> None:
        size = store.info(f"{bucket}/{key}")["size"]
        with open(file, "wb") as copy, ThreadPoolExecutor(AT_ONCE) as threads:
            for part in threads.map(
                lambda at: store.cat_file(f"{bucket}/{key}", start=at, end=min(at + PART, size)),
                range(0, size, PART),
            ):
                copy.write(part)

    def put(file: str, key: str) -> None:
        store.put_file(file, f"{bucket}/{key}", chunksize=PART, max_concurrency=AT_ONCE)

    return get, put


def _boto3(bucket: str) -> tuple[Get, Put]:
    import boto3
    from boto3.s3.transfer import TransferConfig

    client = boto3.client("s3")
    config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=AT_ONCE)

    def get(key: str, file: str) -> None:
        client.download_file(bucket, key, file, Config=config)

    def put(file: str, key: str) -> None:
        client.upload_file(file, bucket, key, Config=config)

    return get, put


def _pyarrow(bucket: str) -> tuple[Get, Put]:
    from pyarrow import fs

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    scheme, _, host = endpoint.partition("://")
    store, local = fs.S3FileSystem(endpoint_override=host, scheme=scheme), fs.LocalFileSystem()

    def get(key: str, file: str) -> None:
        with open(file, "wb") as copy, store.open_input_file(f"{bucket}/{key}") as source:
            size = source.size()
            with ThreadPoolExecutor(AT_ONCE) as threads:
                for part in threads.map(
                    lambda at: source.read_at(min(PART, size - at), at), range(0, size, PART)
                ):
                    copy.write(part)

    def put(file: str, key: str) -> None:
        fs.copy_files(
            file, f"{bucket}/{key}", source_filesystem=local, destination_filesystem=store, chunk_size=PART
        )

    return get, put


def _obstore(bucket: str) -> tuple[Get, Put]:
    import obstore
    from obstore.store import S3Store

    options = {"allow_http": True}
    store = S3Store(
        bucket,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        virtual_hosted_style_request=False,
        client_options=options,
    )

    def get(key: str, file: str) -> None:
        size = obstore.head(store, key)["size"]
        with open(file, "wb") as copy, ThreadPoolExecutor(AT_ONCE) as threads:
            for part in threads.map(
                lambda at: obstore.get_range(store, key, start=at, end=min(at + PART, size)),
                range(0, size, PART),
            ):
                copy.write(part)

    def put(file: str, key: str) -> None:
        with open(file, "rb") as source:
            obstore.put(store, key, source, chunk_size=PART, max_concurrency=AT_ONCE)

    return get, put
