"""Error messages: each error as one line for users, with where, what, and what to do about it.

* Place: most errors of object stores, and that of a full disk, name no file. `located` notes the file or
  folder on them.
* Object stores: `StoreError` says what to do. The clients' errors are recognised by their class names, so
  that no client library is imported; Lance's by their text.
* `attempts` and `pause`: how often a request is repeated that a store did not answer, for all clients.
* Paths and URLs where nothing is found: missing, or not accessible (`absent`).
* The line itself: `error_line`.
"""

from __future__ import annotations

import errno
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from mm_assets.model.errors import MmAssetsError, explained
from mm_assets.storage import without_secrets
from mm_assets.storage.temporary import is_temporary

__all__ = ["StoreError"]


_NOTE = "at "
_REQUEST = "request for "  # what a client asked for: a place where nobody knows a better one


def temporary_place() -> str:
    """Return the folder of temporary files, as the user has set it: a pool's own folder lies in it."""
    path = tempfile.gettempdir()
    folder, name = os.path.split(path)
    return f"the folder {folder if is_temporary(name) else path} for temporary files (TMPDIR)"


@contextmanager
def located(place: str) -> Iterator[None]:
    """Add ``place`` as a note to exceptions of the block that name no file; the innermost block wins.

    `place_of` reads the note.
    """
    try:
        yield
    except Exception as error:
        if _named_place(error) is None:
            error.add_note(f"{_NOTE}{place}")
        raise


def note_request(error: BaseException, url: str) -> None:
    """Note on an error what the request that failed was for, in case that nobody notes a place."""
    error.add_note(f"{_REQUEST}{url}")


def place_of(error: BaseException) -> str | None:
    """Return the file that an error names, or the place `located` noted on it; None without either."""
    return _named_place(error) or _noted(error, _REQUEST)


def _named_place(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.filename is not None:
        # Of a rename the second name is the target.
        name = error.filename if error.filename2 is None else error.filename2
        return os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    return _noted(error, _NOTE)


def _noted(error: BaseException, kind: str) -> str | None:
    notes = getattr(error, "__notes__", ())
    return next((note.removeprefix(kind) for note in notes if note.startswith(kind)), None)


# Packages of file systems whose errors are no built-in exceptions.
_LIBRARIES = frozenset({"aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "s3fs"})
_AZURE_CREDENTIALS = "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY"
_GOOGLE_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
# Of other stores than S3: the package of an error, or the beginning of Lance's text -> what to set.
_CREDENTIALS_BY_PACKAGE = {
    "azure": _AZURE_CREDENTIALS,
    "gcsfs": _GOOGLE_CREDENTIALS,
    "google": _GOOGLE_CREDENTIALS,
}
_CREDENTIALS_BY_TEXT = {"MicrosoftAzure error": _AZURE_CREDENTIALS, "GCS error": _GOOGLE_CREDENTIALS}
_S3_CREDENTIALS = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"

_NO_CREDENTIALS = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_EXPIRED = (
    "the credentials have expired: get new ones (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)"
)
_DENIED = (
    "permission denied: the credentials do not allow it, or are wrong "
    "({credentials}, or [stores] in the settings file)"
)
_NO_CONNECTION = "no connection to {endpoint}: is AWS_ENDPOINT_URL right, and the server up?"
_OVERLOADED = "the store asks for fewer requests, time and again: try again later, or with fewer workers"
_STORE_FAILED = "the store failed, time and again: try again later"
_BROKEN_OFF = "the store broke off its answers, time and again: try again later"
_LOGIN = (
    "login missing or refused: write USER:PASSWORD@ before the host, or see [stores] in the settings file"
)
_OTHER_REGION = "the bucket is in another region: set AWS_REGION"

# Keys: the class of an error, or the code in an S3 server's answer.
_WORDS = {
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "ProfileNotFound": "no such profile in the AWS configuration: see AWS_PROFILE",
    "EndpointConnectionError": _NO_CONNECTION,
    "ConnectTimeoutError": _NO_CONNECTION,
    "ConnectionClosedError": _NO_CONNECTION,
    "ReadTimeoutError": _NO_CONNECTION,
    "SSLError": (
        "{endpoint} does not speak TLS, or with a certificate that is not trusted: "
        "http:// or https:// in AWS_ENDPOINT_URL?"
    ),
    "TokenRetrievalError": _EXPIRED,
    "SSOTokenLoadError": _EXPIRED,
    "UnauthorizedSSOTokenError": _EXPIRED,
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidAccessKeyId": (
        "the server does not know this key: see AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL, or [stores] in the "
        "settings file"
    ),
    "SignatureDoesNotMatch": (
        "the secret is not that of the key: see AWS_SECRET_ACCESS_KEY, or [stores] in the settings file"
    ),
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "AccessDenied": _DENIED,
    "AuthenticationFailed": _DENIED,
    "AuthorizationFailure": _DENIED,
    "AuthorizationPermissionMismatch": _DENIED,
    "ClientAuthenticationError": _DENIED,
    "AccountIsDisabled": _DENIED,
    "InvalidAuthenticationInfo": _DENIED,
    "ContainerNotFound": "no such container",
    "ServerBusy": _OVERLOADED,
    "OperationTimedOut": _OVERLOADED,
    "ServiceResponseError": _BROKEN_OFF,
    "ServiceRequestError": "no connection to {endpoint}: is the name of the account right?",
    "403": _DENIED,
    "NoSuchBucket": "no such bucket",
    "SlowDown": _OVERLOADED,
    "ServiceUnavailable": _OVERLOADED,
    "429": _OVERLOADED,
    "503": _OVERLOADED,
    "InternalError": _STORE_FAILED,
    "500": _STORE_FAILED,
    "502": _STORE_FAILED,
    "504": _STORE_FAILED,
    "PermanentRedirect": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "301": _OTHER_REGION,
    "DefaultCredentialsError": (
        "no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`"
    ),
    "ClientConnectorError": "no connection to {endpoint}",
    "ClientConnectorDNSError": "no connection to {endpoint}",
    "HTTP error": _NO_CONNECTION,
    "HTTP 401": _LOGIN,
    "HTTP 403": _LOGIN,
    "HTTP 404": "no such file",
    "ClientPayloadError": _BROKEN_OFF,
    "IncompleteReadError": _BROKEN_OFF,
    "ResponseStreamingError": _BROKEN_OFF,
    "ResponseParserError": _BROKEN_OFF,
    "HTTPClientError": _NO_CONNECTION,
}
_ACCESS_DENIED = frozenset({"AccessDenied", "403", "AuthorizationPermissionMismatch"})
_OF_THE_PLACE = _ACCESS_DENIED | {"ContainerNotFound", "NoSuchBucket", "HTTP 401", "HTTP 403", "HTTP 404"}
_SYSTEM_PREFIX = re.compile(r"^\[Errno \d+\] ")
# Lance tells of a store's answer in the text of its error alone.
_LANCE = re.compile(r"Error performing [A-Z]+ https?://|Error getting list response")
_LANCE_CODES = (
    re.compile(r"<Code>(\w+)</Code>"),
    re.compile(r"status code: (\d{3})\b"),
    re.compile(r"(HTTP error): "),
)
_ENDPOINT = re.compile(r"https?://[^/\s\"]+|(?<=host )\S+")


class StoreError(MmAssetsError, OSError):
    """A request that an object store refused; the message has the place, the cause and what to do."""


def is_of_store(error: BaseException) -> bool:
    """Return whether an error comes from an object store client, and is not yet a `StoreError`."""
    return not isinstance(error, StoreError) and (
        _stems_from_library(error) or any(code in _WORDS for code in _lance_codes(error))
    )


def _stems_from_library(error: BaseException) -> bool:
    return _is_of_library(error) or (
        isinstance(error, OSError) and error.__cause__ is not None and _is_of_library(error.__cause__)
    )


def is_access_denied(error: BaseException) -> bool:
    """Return whether the store denied access to valid credentials.

    Some requests give no other reason for any failure.
    """
    return not _ACCESS_DENIED.isdisjoint(_names(error))


def is_store_failure(error: BaseException) -> bool:
    """Return whether an error, or its cause, says something of the store or the credentials, not of a file.

    A file that could not be read for such a reason may be as it was written.
    """
    if isinstance(error, StoreError) or any(
        name in _WORDS and name not in _OF_THE_PLACE for name in _names(error)
    ):
        return True
    return error.__cause__ is not None and is_store_failure(error.__cause__)


def store_error_message(error: BaseException) -> str:
    """Return the cause of a store's error in plain words, or in the client's own if there are none."""
    message = _SYSTEM_PREFIX.sub("", " ".join(str(error).split()))
    endpoint = match[0] if (match := _ENDPOINT.search(message)) else "the server"
    words = next((_WORDS[name] for name in _names(error) if name in _WORDS), None)
    if words is None:
        return message or type(error).__name__
    return words.replace("{endpoint}", endpoint).replace("{credentials}", _credentials(error))


def _credentials(error: BaseException) -> str:
    packages = (_package(each) for each in (error, error.__cause__))
    by_package = (_CREDENTIALS_BY_PACKAGE[name] for name in packages if name in _CREDENTIALS_BY_PACKAGE)
    by_text = (names for text, names in _CREDENTIALS_BY_TEXT.items() if f"Generic {text}" in str(error))
    return next(by_package, None) or next(by_text, _S3_CREDENTIALS)


def _package(error: BaseException | None) -> str:
    return type(error).__module__.partition(".")[0]


def _is_of_library(error: BaseException) -> bool:
    return _package(error) in _LIBRARIES


def _lance_codes(error: BaseException) -> list[str]:
    text = str(error)
    if not _LANCE.search(text):
        return []
    return [match[1] for pattern in _LANCE_CODES if (match := pattern.search(text))]


def _names(error: BaseException) -> list[str]:
    """Return the codes in the answers first, then the class names."""
    errors = [error, *([error.__cause__] if error.__cause__ is not None else [])]
    codes = [
        str(response.get("Error", {}).get("Code"))
        for e in errors
        if isinstance(response := getattr(e, "response", None), dict)
    ]
    codes += [f"HTTP {getattr(e, 'status', None)}" for e in errors if _package(e) == "aiohttp"]
    codes += [str(getattr(code, "value", code)) for e in errors if (code := getattr(e, "error_code", None))]
    return [*codes, *_lance_codes(error), *(kind.__name__ for e in errors for kind in type(e).__mro__)]


# What a store calls that which the first part of a path names.
_BUCKETS = {"s3": "bucket", "gs": "bucket", "az": "container"}


def absent(item: str, fs: AbstractFileSystem, path: str, what: str = "file") -> OSError:
    """Return the error to raise for a path that leads to nothing.

    Args:
        item: the path as the user wrote it; messages name it.
        fs: the file system.
        path: the path on ``fs``.
        what: the kind of thing that was looked for.
    """
    if isinstance(fs, LocalFileSystem):
        try:
            os.stat(path)
        except PermissionError as error:
            return error
        except (OSError, ValueError):  # ValueError: a null byte
            return FileNotFoundError(f"{item}: no such {what}")
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    bucket = next((name for scheme, name in _BUCKETS.items() if scheme in protocols), None)
    if bucket is not None and not _has_bucket(fs, path.partition("/")[0]):
        return FileNotFoundError(f"{item}: no such {bucket}")
    return FileNotFoundError(f"{item}: no such {what}")


def _has_bucket(fs: AbstractFileSystem, bucket: str) -> bool:
    try:
        return bool(fs.exists(bucket))
    except PermissionError:  # the bucket may exist
        return True


_ATTEMPTS = 8  # when one in five requests fails, one in 400,000 does so eight times
_FIRST_PAUSE = 0.1  # seconds; all together 10, with half of each at random
_LONGEST_PAUSE = 10.0

# Codes in answers of S3 servers, or the status of answers without a body, as those to HEAD.
_CODES = frozenset(
    "InternalError OperationAborted RequestTimeout RequestTimeTooSlow ServiceUnavailable SlowDown Throttling "
    "ThrottlingException TooManyRequests XAmzContentSHA256Mismatch 408 429 500 502 503 504".split()
)


def attempts() -> int:
    """Return how often a request is tried in all: ``AWS_MAX_ATTEMPTS``, as in other programs, or 8."""
    given = os.environ.get("AWS_MAX_ATTEMPTS", "")
    return max(int(given), 1) if given.isdecimal() else _ATTEMPTS


def pause(failures: int) -> float:
    """Return the seconds to wait after so many failures: twice as long each time, and at random.

    Clients that failed together would otherwise come back together.
    """
    return random.uniform(0.5, 1.0) * min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)


def is_passing_code(code: str) -> bool:
    """Return whether a later request may succeed that a store has answered with this code."""
    return code in _CODES


# Errors that data or the system cause. Of any other class the name is shown too: it is a bug of ours.
_EXPECTED = (ValueError, OSError, MemoryError)

_ERRNO_WORDS = {
    errno.ENOENT: "no such file or folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EEXIST: "a file, not a folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EISDIR: "a folder, not a file",
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n`",
    errno.ENAMETOOLONG: "the name is too long",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OUT_OF_MEMORY = (
    "out of memory: use fewer workers (MM_WORKERS, --workers), or smaller batches (--max-batch-bytes)"
)

# What libraries put into their messages: the system's error number, the file, and (Lance) source code
# locations.
_SYSTEM_ERROR = re.compile(r"\[errno (\d+)\]|\(os error (\d+)\)", re.IGNORECASE)
_QUOTED_FILE = re.compile(r"local file '(.+?)'")
_SOURCE_CODE = re.compile(r",? /\S+\.rs:\d+(:\d+)?")
_LANCE_TEXT = "LanceError("
_OWN_TEMPORARY = re.compile(r"/?\.[^/]*\.tmp$")


# In the form of an object: the same fault has the same line in each process.
_ADDRESS = re.compile(r"(?<= object) at 0x[0-9a-fA-F]+(?=>)")


def error_line(error: BaseException) -> str:
    """Return an error as one line without traceback or secrets of URLs; unexpected classes are named."""
    return without_secrets(_line_of(error))


def _line_of(error: BaseException) -> str:
    if isinstance(error, ImportError):
        error = explained(error)
    if isinstance(error, StoreError):
        return str(error)
    if is_of_store(error):
        return _at(place_of(error), store_error_message(error))
    if isinstance(error, MemoryError):
        return _at(place_of(error), _OUT_OF_MEMORY)
    message = _SOURCE_CODE.sub("", " ".join(str(error).split()))
    message = _ADDRESS.sub("", message)
    if isinstance(error, OSError) or message.startswith(_LANCE_TEXT):
        return _of_system(error, message)
    if isinstance(error, UnicodeEncodeError) and error.reason.startswith("surrogates"):
        return not_utf8(error.object)
    return (
        message
        if isinstance(error, _EXPECTED) and message
        else f"{type(error).__name__}: {message}".removesuffix(": ")
    )


def is_utf8(name: str) -> bool:
    """Return whether a file name can be part of a partition's name or a sample's id: it is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(name: str) -> str:
    """Return the line for a file name that is not UTF-8, on disk or as this locale reads it."""
    is_utf8 = sys.getfilesystemencoding().lower() == "utf-8"
    hint = (
        "rename the file or folder"
        if is_utf8
        else "rename the file or folder, or set LANG=C.UTF-8 if its name is UTF-8"
    )
    return f"{name[:200]!a}: a name that is not UTF-8; {hint}"


def cause_line(error: BaseException, place: str) -> str:
    """Return the `error_line` without ``place`` in front, for messages that name the place themselves."""
    return error_line(error).removeprefix(f"{place}: ")


@contextmanager
def readable_store_errors() -> Iterator[None]:
    """Raise errors of object store clients as `StoreError`, whose message any caller can show."""
    try:
        yield
    except Exception as error:
        if not is_of_store(error):
            raise
        holds_secret = without_secrets(str(error)) != str(error)  # Dagster stores the cause, too
        raise StoreError(error_line(error)) from (None if holds_secret else error)


def _of_system(error: BaseException, message: str) -> str:
    match = _SYSTEM_ERROR.search(message)
    number = getattr(error, "errno", None) or (int(match[1] or match[2]) if match else None)
    named = _QUOTED_FILE.search(message)
    place = named[1] if named else place_of(error)
    if number is None or place is None:
        message = _SYSTEM_PREFIX.sub("", message) or type(error).__name__
        names_itself = ": " in message and not message.startswith(
            _LANCE_TEXT
        )  # our own messages are "file: what"
        return message if names_itself else _at(place, message)
    # No store reports a full disk: it is the disk of the local file that is uploaded.
    if number in _FULL and "://" in place:
        place = temporary_place()
    return _at(_OWN_TEMPORARY.sub("", place), _ERRNO_WORDS.get(number) or os.strerror(number).lower())


def _at(place: str | None, words: str) -> str:
    return words if place is None or words.startswith(place) else f"{place}: {words}"
