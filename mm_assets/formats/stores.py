"""Options of object stores by location: one bucket's credentials, endpoint and region beside those of others.

They come from the settings file. Locations without any use what the environment says (``AWS_*`` variables,
profiles, roles), as all clients do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

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


def canonical_url(location: str) -> str:
    """Return a URL with the scheme by which Lance knows its store; any other location as it is."""
    scheme, separator, rest = location.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}" if separator else location


def is_store(location: str) -> bool:
    """Return whether this is the URL of one place in a store, no pattern, and not within a file (``::``)."""
    return _URL.fullmatch(location) is not None


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
    return dict(_table)


def options_of(uri: str) -> Mapping[str, str]:
    """Return the options of the longest location that a URL lies in; none for others."""
    url = _normal(uri)
    found = [location for location in _table if url == location or url.startswith(f"{location}/")]
    return _table[max(found, key=len)] if found else {}


def fsspec_arguments(uri: str) -> dict[str, Any]:
    """Return the options of a URL as arguments of its file system."""
    options = options_of(uri)
    if not uri.startswith(S3_SCHEMES):
        return dict(options)
    arguments: dict[str, Any] = {_S3_ARGUMENTS[name]: value for name, value in options.items()}
    if region := arguments.pop("region_name", None):
        arguments["client_kwargs"] = {"region_name": region}
    return arguments


def lance_arguments(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return storage options for Lance, which knows no profile by name.

    As for the clients of Python, options of a location come before the environment, and that before what a
    profile says of region and endpoint. Credentials are those of one source, never a mixture.

    Args:
        environment: the options that the environment gives, by Lance's names.

    Raises:
        ValueError: there is no such profile, or it has no credentials; or Lance itself would mix them with a
            token of the environment.
    """
    options = dict(options_of(uri))
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
