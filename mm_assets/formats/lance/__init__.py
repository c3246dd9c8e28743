"""Lance: one table of many partitions, any number of which is replaced in one commit.

Here is where a table lies: a folder or the URL of a store, with the same few file operations for both.

`until_answered` repeats what Lance gave up because a store did not answer one of its requests. Lance repeats
most requests itself. It does not repeat listings that broke off, nor puts that may have been carried out: the
commit of a version is one. Who calls Lance can tell whether it was, and begins anew.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from mm_assets.storage.errors import attempts, pause
from mm_assets.storage.files import filesystem, local_bytes, replace_file, sweep
from mm_assets.storage.stores import canonical_url, fsspec_arguments
from mm_assets.storage.temporary import is_temporary

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 16  # requests to a remote store under way at once

# Lance's option names (without their optional "aws_") -> the arguments of s3fs.
_S3_ARGUMENTS = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"}
_S3_CLIENT = {
    "region": "region_name",
    "default_region": "region_name",
    "endpoint": "endpoint_url",
    "endpoint_url": "endpoint_url",
}


def storage_options_from_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return Lance ``storage_options`` from the standard ``AWS_*`` variables.

    They have ``allow_http`` for an ``http://`` endpoint.
    """
    env = os.environ if environ is None else environ
    options = {
        option: env[variable]
        for option, variable in (
            ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
            ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
            ("aws_session_token", "AWS_SESSION_TOKEN"),
        )
        if env.get(variable)
    }
    if region := env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION"):
        options["aws_region"] = region
    if endpoint := env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL"):
        options["aws_endpoint"] = endpoint
        if endpoint.startswith("http://"):
            options["allow_http"] = "true"
    return options


class Location:
    """A table's folder or URL. Paths given to its methods are relative to it, with ``/``."""

    def __init__(self, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        text = os.fspath(uri)
        scheme, separator, rest = text.partition("://")
        self.storage_options = dict(storage_options or {})
        self._root: Path | None = None
        self._fs: Any = None
        self.fs_options: dict[str, Any] | None = None  # of fsspec, for a URL
        if not separator or scheme == "file":
            self._root = Path(os.path.abspath(rest if separator else text))
            self.uri = str(self._root)
            return
        is_s3 = scheme in ("s3", "s3a")
        arguments = _s3_arguments(self.storage_options) if is_s3 else fsspec_arguments(text)
        # Listings must be fresh: other processes write records all the time.
        self.fs_options = {"use_listings_cache": False, **arguments}
        self._fs, _ = filesystem(text, self.fs_options)
        self.uri = canonical_url(text).rstrip("/")

    def has_table(self) -> bool:
        """Return whether there is a committed version.

        It lists the folder, because Lance prints a warning when there is none.
        """
        return any(
            name.endswith(".manifest") for name in self.names("_versions")
        )  # a killed first commit leaves "….manifest#1"

    def names(self, folder: str) -> list[str]:
        """Return the names of the finished files directly in a folder, sorted; none for a missing folder."""
        try:
            if self._root is not None:
                found = os.listdir(self._root / folder)
            else:
                found = [
                    str(path).rsplit("/", 1)[-1] for path in self._fs.ls(f"{self.uri}/{folder}", detail=False)
                ]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if name and not is_temporary(name))

    def exists(self, path: str) -> bool:
        if self._root is not None:
            return (self._root / path).exists()
        return bool(self._fs.exists(f"{self.uri}/{path}"))

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None when it does not exist (any more)."""
        if self._root is not None:
            return local_bytes(os.path.join(self.uri, path))
        try:
            return bytes(self._fs.cat_file(f"{self.uri}/{path}"))
        except FileNotFoundError:
            return None

    def read_all(self, paths: Sequence[str]) -> Iterable[bytes | None]:
        """Return what `read` returns of each; of a store several are read at once."""
        # Local files of kilobytes are read faster than they are handed to a thread.
        return each(self.read, paths) if self._root is None else map(self.read, paths)

    def put(self, path: str, data: bytes) -> None:
        """Publish a small file in one step: a reader sees the previous bytes or these, never a part."""
        if self._root is None:
            self._fs.pipe_file(f"{self.uri}/{path}", data)
            return
        replace_file(str(self._root / path), data)

    def sweep(self, folder: str) -> None:
        """Remove what killed processes left in a local folder during a `put`."""
        if self._root is not None:
            sweep(str(self._root / folder))

    def delete(self, path: str) -> None:
        """Remove a file. A missing file is no error: two committers prune the same records."""
        try:
            if self._root is not None:
                (self._root / path).unlink()
            else:
                self._fs.rm_file(f"{self.uri}/{path}")
        except FileNotFoundError:
            return


def each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``function`` of every item, in order; several run at once. The first error is raised."""
    work = list(items)
    if len(work) < 2:
        return [function(item) for item in work]
    with ThreadPoolExecutor(min(_THREADS, len(work)), thread_name_prefix="mm-lance") as pool:
        return list(pool.map(function, work))


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    client: dict[str, str] = {}
    for option, value in options.items():
        name = option.lower().removeprefix("aws_")
        if name in _S3_ARGUMENTS:
            arguments[_S3_ARGUMENTS[name]] = value
        elif name in _S3_CLIENT:
            client[_S3_CLIENT[name]] = value
    if client:
        arguments["client_kwargs"] = client
    return arguments


_UNANSWERED = re.compile(
    r"HTTP error: (?:error sending request|request or response body error|error decoding response)"
)
_REPEATED_BY_LANCE = re.compile(r"after [1-9]\d* retries")


def is_unanswered(error: BaseException) -> bool:
    """Return whether a request of Lance got no answer, or half of one, and was not repeated."""
    text = str(error)
    return (
        isinstance(error, OSError | ValueError | RuntimeError)
        and _UNANSWERED.search(text) is not None
        and _REPEATED_BY_LANCE.search(text) is None
    )


def until_answered(action: Callable[[], Result]) -> Result:
    """Return the result of ``action``, which is called again after each `is_unanswered` error.

    Raises:
        OSError: the store does not answer, after several attempts.
    """
    most, failures = attempts(), 0
    while True:
        try:
            return action()
        except (OSError, ValueError, RuntimeError) as error:
            failures += 1
            if failures >= most or not is_unanswered(error):
                raise
        time.sleep(pause(failures))
