"""S3 client: s3fs with one kind of retry, and without errors that look like absence.

s3fs tries some requests five times, each of which botocore tries five times, and reads of whole objects five
times around that. It takes any error for "no such file", and leaves out of a listing what it could not list.

Here a request is tried again in one place, the lowest that can repeat it. Nested retries would multiply: five
by five by five requests for one that a store refuses is how a short outage becomes a long one.
`mm_assets.storage.errors` says how often, and after which pauses.

A shard has some twenty small objects, such as accounts. An erasure reads them all. s3fs takes 2.2 ms of CPU
for one, the client that Lance has for its tables 0.3. `small_object` asks that one. After an error it asks it
nothing more; then the caller asks s3fs, in whose words all errors are told.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import fsspec.config
import s3fs
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError, HTTPClientError, NoCredentialsError, SSLError
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError
from botocore.utils import parse_timestamp
from fsspec.asyn import sync_wrapper
from s3fs.core import S3_RETRYABLE_ERRORS, _error_wrapper
from s3fs.errors import translate_boto_error

from mm_assets.storage import lance_arguments, options_of
from mm_assets.storage.errors import attempts, is_passing_code, note_request, pause

if TYPE_CHECKING:
    from lance.file import LanceFileSession

_NO_ANSWER = (*S3_RETRYABLE_ERRORS, HTTPClientError, NoConnection, ResponseParserError, ConnectionError)
# After such a request failed, its upload is gone because it was carried out: only the answer was lost.
_ENDING_AN_UPLOAD = ("complete_multipart_upload", "abort_multipart_upload")
_NO_RANGE = ("InvalidRange", "416")  # an empty object has none
_CHANGES = ("put_object", "complete_multipart_upload", "copy_object", "delete_object", "delete_objects")
_MOST_NOTED = 16  # objects
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
# The variables that name them -> where they lie otherwise.
_CONFIGURATION_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


class S3FileSystem(s3fs.S3FileSystem):
    """The file system of ``s3://`` URLs; options are those of `s3fs.S3FileSystem`.

    ``config_kwargs={"read_timeout": …, "connect_timeout": …}`` sets how long to wait for a store that says
    nothing (15 and 5 seconds).
    """

    session: Any
    tells_put_etags = False  # seen: an object has the etag that was answered to its put
    _connected_with: tuple[object, ...] | None = None  # the AWS configuration of the session
    _put: Mapping[str, Mapping[str, Any]] = {}  # `info`, by path, of the objects that were put last

    def _prepare_config_kwargs(self) -> dict[str, Any]:
        # botocore tries once: `_call_s3` knows more errors, and tries again.
        return {"retries": {"total_max_attempts": 1}, **super()._prepare_config_kwargs()}

    async def set_session(self, refresh: bool = False, kwargs: Any = None) -> Any:
        """Connect to the store, and again once the AWS configuration has changed.

        A session keeps the credentials that it began with. A server that runs for months outlives those that
        a tool renews in their file every hour.
        """
        found = _configuration()
        if self._connected_with not in (None, found):
            self._forget_session()
        self._connected_with = found
        if self.session is None:
            self.session = AioSession(**self.kwargs)
            self._session_is_owned = True
            factory = self.session.get_component("response_parser_factory")
            factory.set_parser_defaults(timestamp_parser=_timestamp)
        return await super().set_session(refresh)

    def _forget_session(self) -> None:
        """Look for credentials again at the next request; later callers get a file system of their own."""
        self._s3 = None
        if self._session_is_owned:
            self.session = None
        self.clear_instance_cache()

    async def _call_s3(self, method: str, *akwarglist: Any, **kwargs: Any) -> Any:
        """Send a request until it is answered, or there is no more hope.

        Raises:
            OSError: of a class that the callers in s3fs do not take for a reason to try again.
        """
        try:
            return await self._until_answered(method, *akwarglist, **kwargs)
        except OSError as error:
            key = kwargs.get("Key") or kwargs.get("Prefix") or ""
            note_request(error, f"s3://{kwargs.get('Bucket', '')}/{key}".rstrip("/"))
            raise

    async def _until_answered(self, method: str, *akwarglist: Any, **kwargs: Any) -> Any:
        await self.set_session()
        call = getattr(await self.get_s3(kwargs.get("Bucket")), method)
        arguments = self._get_s3_method_kwargs(call, *akwarglist, **kwargs)
        most, failures = attempts(), 0
        while True:
            try:
                answer = await call(**arguments)
            except ClientError as error:
                code = str(error.response["Error"].get("Code"))
                if code == "NoSuchUpload" and failures and method in _ENDING_AN_UPLOAD:
                    return {}
                failures += 1
                if failures >= most or not is_passing_code(code):
                    raise translate_boto_error(error) from error
            except NoCredentialsError:  # whoever gives them may only be late
                self._forget_session()
                raise
            except _NO_ANSWER as error:
                failures += 1
                if failures >= most or isinstance(error, SSLError):
                    raise ConnectionError(str(error)) from error
            else:
                if method in _CHANGES:
                    self._note_change(arguments, answer if method == "put_object" else {})
                return answer
            await asyncio.sleep(pause(failures))

    call_s3 = sync_wrapper(_call_s3)

    def _note_change(self, arguments: Mapping[str, Any], put: Mapping[str, Any]) -> None:
        """Note what was answered to a ``put``; forget what is known of an object that changed otherwise."""
        key, body = arguments.get("Key"), arguments.get("Body")
        path = f"{arguments['Bucket']}/{key}"
        noted = {} if key is None else {**self._put}  # many objects were removed at once
        noted.pop(path, None)
        if (etag := put.get("ETag")) and isinstance(body, bytes):
            noted[path] = {"size": len(body), "ETag": etag}
        self._put = dict([*noted.items()][-_MOST_NOTED:])

    def take_info_of_put(self, path: str) -> Mapping[str, Any] | None:
        """Return size and etag of an object that was put in one piece, once; None if that is long ago."""
        noted = dict(self._put)
        info = noted.pop(path, None)
        self._put = noted
        return info

    def refuse_unwritable(self, path: str) -> None:
        """Raise the error that putting an object below a path would end in, without putting one."""
        bucket, key, _ = self.split_path(f"{path}/.upload-{uuid.uuid4().hex}")
        begun = [self.call_s3("create_multipart_upload", Bucket=bucket, Key=key)]
        with suppress(PermissionError):  # an upload that is never completed stays invisible
            # More than one, if an answer was lost.
            begun = self.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads") or begun
        with suppress(PermissionError):
            for upload in begun:
                self.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload["UploadId"])

    async def _read_one_end(
        self, path: str, nbytes: int, is_last: bool
    ) -> tuple[dict[str, Any], int, bytes] | None:
        """Return what `info` does of an object, and its first or last bytes behind their place.

        None if it is empty, or its version is to be asked for first.
        """
        bucket, key, _ = self.split_path(path)
        if not key or self.version_aware:
            return None
        ends = f"bytes=-{nbytes}" if is_last else f"bytes=0-{nbytes - 1}"

        async def answer_and_bytes() -> tuple[dict[str, Any], bytes]:
            answer = await self._call_s3("get_object", Bucket=bucket, Key=key, Range=ends)
            return answer, await answer["Body"].read()

        try:
            answer, data = await _error_wrapper(answer_and_bytes, retries=self.retries)
        except OSError as error:
            refusal = error.__cause__
            if isinstance(refusal, ClientError) and refusal.response["Error"].get("Code") in _NO_RANGE:
                return None
            raise
        place = _RANGE.fullmatch(answer.get("ContentRange", ""))
        start, size = (int(place[1]), int(place[2])) if place else (0, len(data))
        told = {name: answer.get(name) for name in ("ETag", "LastModified", "VersionId", "ContentType")}
        return {"name": path, "size": size, "type": "file", **told}, start, data

    read_one_end = sync_wrapper(_read_one_end)

    def _open(
        self, path: str, mode: str = "rb", *, details: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """Open an object; ``details`` are the `info` of it, if they are known."""
        if details is None:
            return super()._open(path, mode, **kwargs)
        file = super()._open(path, mode, size=details["size"], **kwargs)
        file.details = details
        if details["ETag"] and not self.local_expiry_check:
            file.read_kw = {**file.read_kw, "IfMatch": details["ETag"]}  # as where s3fs asks for them
        return file

    async def _isfile(self, path: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == "file")
        except (FileNotFoundError, PermissionError, ValueError):  # denied: who may not list may be told so
            return False

    async def _cat_file(self, path: str, **kwargs: Any) -> bytes:
        # By default a request asks for the size first, to read a large file in parts.
        return bytes(await super()._cat_file(path, **{"max_concurrency": 1, **kwargs}))

    async def _cat_ranges(
        self, paths: list[str], starts: Any, ends: Any, max_gap: Any = None, **kwargs: Any
    ) -> list[Any]:
        # By default an error takes the place of the bytes, and fsspec's reader of Parquet takes it for some.
        return await super()._cat_ranges(paths, starts, ends, max_gap, **{"on_error": "raise", **kwargs})

    async def _walk(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        async for found in super()._walk(path, maxdepth=maxdepth, **{"on_error": _raised, **kwargs}):
            yield found


def _timestamp(text: Any) -> Any:
    """Return the time that a store has written; botocore's parser, which takes any text, is a slow one."""
    found = None
    with suppress(ValueError, AttributeError, TypeError):
        found = datetime.fromisoformat(text) if text.endswith("Z") else parsedate_to_datetime(text)
    return found if found is not None and found.tzinfo is not None else parse_timestamp(text)


def _raised(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _configuration() -> tuple[object, ...]:
    """Return what differs whenever the variables or files of the AWS configuration do."""
    # Not `items`: it raises if another thread removes a variable meanwhile.
    variables = sorted((name, os.environ.get(name)) for name in os.environ if name.startswith("AWS_"))
    files = [os.environ.get(name) or file for name, file in _CONFIGURATION_FILES.items()]
    return (*variables, *map(_stamp, files))


def _stamp(file: str) -> tuple[int, ...]:
    try:
        found = os.stat(os.path.expanduser(os.path.expandvars(file)))
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


_SMALL = 1 << 20
# Names that no client spells another way: without empty parts, and those of dots.
_PLAIN = re.compile(r"s3a?://([\w.-]+)((?:/(?!\.\.?(?:/|$))[\w.=@+-]+)+)", re.ASCII)
_OPTIONS_OF_CLIENT = {"client_max_retries": "0", "timeout": "4s", "connect_timeout": "4s"}
_READ_BY_LANCE = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
)
_Access = tuple[object, ...]  # what a client is made of
_failed: set[_Access] = set()  # of clients that are not asked again
_clients: dict[_Access, LanceFileSession] = {}


def small_object(url: str, size: int) -> bytes | None:
    """Return an object of less than 1 MiB by the client of Lance; None: s3fs has to be asked.

    Args:
        size: its listed size in bytes; an object that has another one now is left to s3fs.
    """
    found = _PLAIN.fullmatch(url)
    if found is None or not 0 < size < _SMALL or not fsspec.config.conf.keys().isdisjoint(("s3", "s3a")):
        return None
    # A process that was forked off cannot use the threads of a client.
    access = (found[1], os.getpid(), *sorted(options_of(url).items()), *_configuration())
    if access in _failed:
        return None
    try:
        data = _lance_client(access, url).read_range(found[2][1:], 0, size + 1)
    # Rust panics on settings that it cannot read, and that is no `Exception`.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        _failed.add(access)
        return None
    return bytes(data) if len(data) == size else None


def _lance_client(access: _Access, url: str) -> LanceFileSession:
    if access not in _clients:
        from lance.file import LanceFileSession

        options = {**lance_arguments(url), **_OPTIONS_OF_CLIENT}
        given = {**options, **{name: os.environ[name] for name in _READ_BY_LANCE if name in os.environ}}
        if not all(value.isprintable() and value.strip() for value in given.values()):
            raise ValueError("an empty or broken setting, which makes Lance panic")
        if not options.get("aws_endpoint", "http").startswith("http"):
            raise ValueError("an endpoint without a scheme, which makes Lance panic")
        _clients[access] = LanceFileSession(f"s3://{access[0]}", options)
    return _clients[access]
