"""Storage: files of any file system, which appear as a whole. Here is what names a place in a store.

* Options: the credentials, endpoint and region of one bucket, beside those of others. They come from the
  settings file. Locations without any use what the environment says (``AWS_*`` variables, profiles, roles),
  as all clients do.
* Secrets: what a URL itself holds of credentials is taken out of it where it comes in, and put back where it
  is opened (`clean_url`, `opened_url`). All between them, and all that is written, has the URL without.
* Brace lists, such as ``shard-{00000..00099}.tar``, are expanded as in a shell but with a limit.
"""

from __future__ import annotations

import base64
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from braceexpand import alphabet, braceexpand

MAX_NAMES = 500_000  # per brace list; the largest public datasets have a few hundred thousand shards
_MAX_DEPTH = 50

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(?:(-?\d+)\.\.(-?\d+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?(\d+))?")
_COUNTED = re.compile(r"\0([^\0]*)\0")  # placeholder of a list that is already counted
_MAX_DIGITS = 18


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a brace list stands for, in its order; a backslash escapes a brace.

    Raises:
        ValueError: the list has more than ``MAX_NAMES`` names (counted before any is made), or an unmatched
            brace.
    """
    count = _count(pattern)
    if count > MAX_NAMES:
        count_text = f"{count:,.0f}" if count < 10**15 else "endlessly many"
        hint = "is there a digit too many? A * stands for all files that are there"
        raise ValueError(
            f"{pattern:.200}: the braces stand for {count_text} names, "
            f"at most {MAX_NAMES:,} are taken; {hint}"
        )
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ValueError(
            f"{pattern:.200}: a brace without its partner; write \\{{ for one that is part of a name"
        ) from error


def _count(pattern: str) -> float:
    """Count the names of a brace list without making them; infinite for more than a float can count."""
    text = re.sub(r"\\.|\0", "", pattern, flags=re.DOTALL)
    for _ in range(_MAX_DEPTH):
        text, found = _INNERMOST.subn(lambda match: f"\0{_count_of_list(match[1])}\0", text)
        if not found:
            return _product(text)
    return math.inf


def _count_of_list(inside: str) -> float:
    match = _RANGE.fullmatch(inside)
    if match is None:
        # Without a comma the braces are part of the name, as in a shell.
        return sum(map(_product, inside.split(",")))
    if max(map(len, filter(None, match.groups()))) > _MAX_DIGITS:
        return math.inf
    first, last = (
        (int(match[1]), int(match[2])) if match[1] else (alphabet.index(match[3]), alphabet.index(match[4]))
    )
    return float(abs(last - first) // (int(match[5] or 1) or 1) + 1)


def _product(text: str) -> float:
    return math.prod(map(float, _COUNTED.findall(text)))


StoreTable = Mapping[str, Mapping[str, str]]  # location -> option -> value

S3_SCHEMES = ("s3://", "s3a://")
_SCHEMES = {"s3a": "s3", "gcs": "gs", "abfs": "az"}
# Named as the fields of dagster_aws.s3.S3Resource -> the arguments of s3fs.
_S3_ARGUMENTS = {
    "profile_name": "profile",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "endpoint_url": "endpoint_url",
    "region_name": "region_name",
}
S3_OPTIONS = tuple(_S3_ARGUMENTS)
CREDENTIALS = frozenset(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"))

_URL = re.compile(r"(?!file:|local:)[a-z][a-z0-9+.-]*://[^:*?\[\]{}]+(?::[^:*?\[\]{}]+)*")
_table: dict[str, dict[str, str]] = {}
_of_urls: dict[str, dict[str, str]] = {}  # the same, of what URLs held

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}://", re.IGNORECASE)
# A password with a slash in it is recognised by what stands where a port would be.
_USERINFO = re.compile(
    r"\b([a-z][a-z0-9+.-]{0,30})://(?!\[)([^/?#\s]*|[^/?#\s:]*:(?!\d*[/?#\s])[^\s'\"<>]*)@", re.IGNORECASE
)
_WEB = ("http", "https")
_NO_LOGIN = ("github", "git")  # before the @ they have a repository
_BUCKETS = ("s3", "gs", "az")
_QUERY = re.compile(r"\?([^\s?#'\"<>]+)")
_SECRET = re.compile(
    r"(?:x-(?:amz|goog|oss|obs|cos|ms)-[\w-]+|[\w.-]*(?:signature|secret|passw(?:or)?d|credentials?|token"
    r"|api[_-]?key|access[_-]?key(?:[_-]?id)?)|sig|sign|pwd|auth|jwt|hmac)=",
    re.IGNORECASE,
)
# What stores ask for beside a signature: parts of it, and no part of the file's name.
_BESIDE_SECRET = re.compile(
    r"(?:expires|policy|key-pair-id|googleaccessid|s[verpt]|ss|srt|spr|sip|sk(?:oid|tid|[tesv]))=",
    re.IGNORECASE,
)
_SIGNED_URL = "signed_url"


def canonical_url(location: str) -> str:
    """Return a URL with the scheme by which Lance knows its store; any other location as it is."""
    scheme, separator, rest = location.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}" if separator else location


def without_secrets(text: str) -> str:
    """Return a URL, or a text with URLs, without users, passwords and signatures."""
    if "://" not in text:
        return text
    return _QUERY.sub(_without_signature, _USERINFO.sub(_without_login, text))


def _without_login(match: re.Match[str]) -> str:
    scheme, login = match[1].lower(), match[2]
    # Elsewhere a name alone is a container, or a user of the machine.
    is_secret = scheme in _WEB or (":" in login and scheme not in _NO_LOGIN)
    is_arn = "/" in login and _SCHEMES.get(scheme, scheme) in _BUCKETS  # and the file's name has an @
    return f"{match[1]}://" if is_secret and not is_arn else match[0]


def _without_signature(match: re.Match[str]) -> str:
    fields = match[1].split("&")
    scheme = match.string[: match.start()].rpartition("://")[0][-5:].lower()
    # The name of a file in a bucket may hold anything.
    if not scheme.endswith(_WEB) or not any(map(_SECRET.match, fields)):
        return match[0]
    kept = [field for field in fields if not (_SECRET.match(field) or _BESIDE_SECRET.match(field))]
    return f"?{'&'.join(kept)}" if kept else ""


def clean_url(location: str) -> str:
    """Return a location `without_secrets`; this process, and its workers, open it with them all the same.

    Raises:
        ValueError: the URL names a key where a bucket should be.
    """
    clean = location if location.startswith(("file:", "local:")) else without_secrets(location)
    if clean == location:
        return location
    given, url = (
        text[[match.start() for match in _SCHEME.finditer(text)][-1] :] for text in (location, clean)
    )
    scheme, _, rest = url.partition("://")
    names: dict[str, str] = {}
    if login := _USERINFO.match(given):
        given = f"{scheme}://{given[login.end() :]}"
        if _SCHEMES.get(scheme, scheme) in _BUCKETS:
            raise ValueError(
                f"{clean}: a key or a password in the URL of a bucket: put them into the environment, "
                "or into [stores] of the settings file"
            )
        user, _, password = login[2].partition(":")
        names = {"username": unquote(user), "password": unquote(password)}
        _of_urls[f"{scheme}://{rest.partition('/')[0]}"] = names
    if given != url:
        named = [(url, given), *zip(expand_braces(url), expand_braces(given), strict=True)]
        for name, signed in named:
            _of_urls[_normal(name)] = {**names, _SIGNED_URL: signed}
    return clean


def opened_url(url: str) -> str:
    """Return a clean URL with the signature that it was given with."""
    head, separator, last = url.rpartition("::")
    return head + separator + options_of(last).get(_SIGNED_URL, last) if _of_urls or _table else url


def is_store(location: str) -> bool:
    """Return whether this is the URL of one place in a store, no pattern, and not within a file (``::``)."""
    return _URL.fullmatch(location) is not None and without_secrets(location) == location


def repeated_location(locations: Iterable[str]) -> tuple[str, str] | None:
    """Return two locations that are the same but for a slash at the end, or another name of the scheme."""
    known: dict[str, str] = {}
    for location in locations:
        if (other := known.setdefault(_normal(location), location)) != location:
            return other, location
    return None


def use_stores(table: StoreTable) -> None:
    """Use these options from now on in this process, and no others."""
    _table.clear()
    _table.update({_normal(location): dict(options) for location, options in table.items()})


def stores() -> StoreTable:
    """Return the options in use, for another process."""
    return {**_table, **_of_urls}


def options_of(uri: str) -> Mapping[str, str]:
    """Return the options of the longest location that a URL lies in; none for others."""
    url = _normal(uri)
    table = stores()
    found = [location for location in table if url == location or url.startswith(f"{location}/")]
    return table[max(found, key=len)] if found else {}


def fsspec_arguments(uri: str) -> dict[str, Any]:
    """Return the options of a URL as arguments of its file system."""
    options = {name: value for name, value in options_of(uri).items() if name != _SIGNED_URL}
    if uri.partition("://")[0].lower() in _WEB and "username" in options:
        login = f"{options.pop('username')}:{options.pop('password', '')}"
        header = f"Basic {base64.b64encode(login.encode()).decode()}"
        return {**options, "headers": {"Authorization": header}}
    if not uri.startswith(S3_SCHEMES):
        return options
    arguments: dict[str, Any] = {_S3_ARGUMENTS[name]: value for name, value in options.items()}
    if region := arguments.pop("region_name", None):
        arguments["client_kwargs"] = {"region_name": region}
    return arguments


def import_client(locations: Iterable[str]) -> None:
    """Import the client of S3 if some location is there, for workers that are forked from here later.

    To open a location does that, too, but starts a thread, and a process with threads cannot be forked. If it
    is not installed, who opens a location says so.
    """
    if any(scheme in location for scheme in S3_SCHEMES for location in locations):
        with suppress(ImportError):
            from mm_assets.storage import s3  # noqa: F401


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


def lance_arguments(uri: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return storage options for Lance, which knows no profile by name.

    As for the clients of Python, options of a location come before the environment, and that before what a
    profile says of region and endpoint. Credentials are those of one source, never a mixture.

    Args:
        environment: the options of the environment, by Lance's names; None: `storage_options_from_env`.

    Raises:
        ValueError: there is no such profile, or it has no credentials; or Lance itself would mix them with a
            token of the environment.
    """
    options = dict(options_of(uri))
    environment = storage_options_from_env() if environment is None else environment
    if not uri.startswith(S3_SCHEMES):
        return {**environment, **options}
    profile = options.pop("profile_name", None)
    of_profile = _of_profile(uri, profile) if profile is not None else {}
    arguments = dict(environment)
    own = CREDENTIALS.intersection(of_profile).union(CREDENTIALS.intersection(options))
    if own and "aws_session_token" not in own and os.environ.get("AWS_SESSION_TOKEN"):
        raise ValueError(
            f"{uri}: Lance would take AWS_SESSION_TOKEN of the environment beside the keys that the settings "
            "file has for this location: unset it"
        )
    if own:
        arguments = {name: value for name, value in arguments.items() if name not in CREDENTIALS}
    arguments = {**_lance_names(of_profile), **arguments, **_lance_names(options)}
    if arguments.get("aws_endpoint", "").startswith("http://"):
        arguments["allow_http"] = "true"
    return arguments


def _lance_names(options: Mapping[str, str]) -> dict[str, str]:
    names = {"region_name": "aws_region", "endpoint_url": "aws_endpoint"}
    return {names.get(name, name): value for name, value in options.items()}


def _of_profile(uri: str, profile: str) -> dict[str, str]:
    """Return what a profile of the AWS configuration says; of a role, credentials for an hour or so."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import Session

    session = Session(profile=profile)
    try:
        credentials = session.get_credentials()
        frozen = None if credentials is None else credentials.get_frozen_credentials()
        config = session.get_scoped_config()
    except (BotoCoreError, ClientError) as error:
        raise ValueError(f"{uri}: profile {profile!r} of the AWS configuration: {error}") from error
    if frozen is None:
        raise ValueError(f"{uri}: profile {profile!r} of the AWS configuration has no credentials")
    found = {
        "aws_access_key_id": frozen.access_key,
        "aws_secret_access_key": frozen.secret_key,
        "aws_session_token": frozen.token,
        "region_name": config.get("region"),
        "endpoint_url": config.get("endpoint_url"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _normal(location: str) -> str:
    return canonical_url(location).rstrip("/")
