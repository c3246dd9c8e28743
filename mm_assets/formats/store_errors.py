"""Messages for errors of object stores that say what to do.

Errors are recognised by their class names, so that no client library is imported.
"""

from __future__ import annotations

import re

from mm_assets.interleaved.errors import MmAssetsError

__all__ = ["StoreError"]

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
