"""Settings of the graph: one table of names, defaults and meanings."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from mm_assets.accounting.contract import SCHEMA_CHANGES
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.filters.registry import FILTERS, known_filters, settings_of
from mm_assets.filters.score_filter import ScoreFilter
from mm_assets.formats.paired.raw.address import MISSING_KEY_POLICIES
from mm_assets.formats.partitions import parse_bytes
from mm_assets.formats.webdataset.layout import (
    DEFAULT_IMAGE_EXTENSIONS,
    DEFAULT_JSON_EXTENSIONS,
    IMAGES,
    SAMPLE_ID_PREFIXES,
    TEXTS,
    RawLayout,
)
from mm_assets.interleaved.policies import POLICIES
from mm_assets.plugins import load_plugins
from mm_assets.settings_file import PREFIX, given_settings

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class _OneOf:
    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.names:
            raise ValueError(f"must be one of {', '.join(self.names)}, not {text!r}")
        return text


def _one_of(*names: str) -> _OneOf:
    return _OneOf(names)


def _number(kind: Callable[[str], Any], most: float = float("inf")) -> Callable[[str], Any]:
    """Return a parser of numbers from 0 to ``most``."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError as error:
            raise ValueError(f"must be a number, not {text!r}") from error
        if not value >= 0:
            raise ValueError(f"must not be negative: {text}")
        if value > most:
            raise ValueError(f"must be at most {most:g}, not {text}")
        return value

    return parse


def _size(text: str) -> str:
    """Check a size in bytes, and return it as written."""
    parse_bytes(text)
    return text


def _cron(text: str) -> str:
    """Check the shape of a cron expression: five fields, or a name such as ``@daily``."""
    if len(text.split()) != 5 and not text.startswith("@"):
        raise ValueError(f"must be a cron expression of five fields, such as '0 2 * * *', not {text!r}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _duration(text: str) -> float:
    """Return the seconds of a duration such as 90m, 24h or 7d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not match or not float(match[1]):
        raise ValueError(f"must be a duration such as 90m, 24h or 7d, not {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _web_address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, not {text!r}")
    return text


def _setting(
    default: Any, parse: Callable[[str], Any], meaning: str, heading: str = "", is_secret: bool = False
) -> Any:
    """Return a field.

    Args:
        heading: that of the settings file above it and those that follow.
        is_secret: its value is never shown.
    """
    choices = parse.names if isinstance(parse, _OneOf) else ()
    metadata = {"parse": parse, "meaning": meaning, "heading": heading, "choices": choices}
    return field(default=default, repr=not is_secret, metadata=metadata)


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    float: _number(float),
    int: _number(int),
    str: str,
    tuple: _names,
}


def _with_settings_of(filters: tuple[type[ScoreFilter], ...]) -> Callable[[type[S]], type[S]]:
    """The settings of filters as further fields of a class of settings; all are unset by default."""

    def decorate(cls: type[S]) -> type[S]:
        added = [
            (known.name, Any, _setting(None, _PARSERS[known.kind], known.meaning, "" if index else "filters"))
            for index, known in enumerate(settings_of(filters))
        ]
        taken = {f.name for f in fields(cls)}
        for kind in filters:
            if clash := [known.name for known in kind.settings().values() if known.name in taken]:
                raise ValueError(f"filter {kind.name!r} of {kind.__module__}: {variable(clash[0])} is taken")
        namespace = {
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            "filters": (*cls.filters, *filters),
        }
        return make_dataclass(cls.__name__, added, bases=(cls,), frozen=True, namespace=namespace)

    return decorate


@_with_settings_of(FILTERS)
@dataclass(frozen=True)
class Settings:
    """Every setting with its default; its variable is ``MM_<NAME>``, and `describe` has the meanings.

    The settings of ``filters`` are fields, too.
    """

    filters: ClassVar[tuple[type[ScoreFilter], ...]] = ()

    raw_shards: str = _setting("demo/raw", str, "locations of raw shards, separated by whitespace", "data")
    storage: str = _setting("demo/storage", os.path.expanduser, "output root: a folder or a URL")
    workers: int = _setting(0, _number(int), "worker processes of a run; 0: one for every core")
    on_materialize_error: str = _setting(
        "drop_sample", _one_of(*POLICIES), "what becomes of an item that cannot be had"
    )
    max_loss: float = _setting(
        0.5,
        _number(float, 1),
        "share of a shard's members and items that may be quarantined, unreferenced or unreadable",
    )
    sample_id_field: str | None = _setting(
        None, str, "json field, or column, with the sample id", "layout of the raw documents"
    )
    sample_id_prefix: str | None = _setting(
        None, _one_of(*SAMPLE_ID_PREFIXES), "`shard`: the partition's name in front of each sample id"
    )
    texts_field: str = _setting(TEXTS, str, "json field, or column, with the list of texts")
    images_field: str = _setting(IMAGES, str, "json field, or column, with the list of images")
    image_member_field: str | None = _setting(None, str, "json field that names the sample's image member")
    image_extensions: tuple[str, ...] = _setting(
        DEFAULT_IMAGE_EXTENSIONS, _names, "suffixes of image members"
    )
    json_extensions: tuple[str, ...] = _setting(
        DEFAULT_JSON_EXTENSIONS, _names, "suffixes of the members that are documents"
    )
    per_image_fields: tuple[str, ...] = _setting((), _names, "json lists with one value per image")
    per_text_fields: tuple[str, ...] = _setting((), _names, "json lists with one value per text")
    missing_keys: str = _setting(
        "skip", _one_of(*MISSING_KEY_POLICIES), "of paired shards: a sample that a modality lacks"
    )
    decode_fraction: float = _setting(
        0.01, _number(float, 1), "share of the images that is decoded to the last pixel", "limits and checks"
    )
    max_image_pixels: int = _setting(
        MAX_PIXELS, _number(int), "an image of more pixels is a decompression bomb"
    )
    max_member_bytes: str = _setting(
        "1GiB", _size, "a larger member of a tar, or image in Parquet, is not read"
    )
    schema_changes: str = _setting(
        "refuse", _one_of(*SCHEMA_CHANGES), "a shard whose types do not fit the published ones"
    )
    automation: str = _setting(
        "off",
        _one_of("off", "new", "all"),
        "what is made without a click: nothing, raw shards that arrive, or whatever has changed, too",
        "operation",
    )
    refresh_cron: str | None = _setting(
        None, _cron, "when shards that are missing, failed or stale are made: a cron expression"
    )
    prove_cron: str | None = _setting(None, _cron, "when every output is read and proven again")
    maintenance_cron: str | None = _setting(
        None, _cron, "when the table is compacted, and old versions, logs and temporary files are removed"
    )
    alerts: tuple[str, ...] = _setting(
        (), _words, "where alerts go: Apprise URLs, separated by whitespace", is_secret=True
    )
    alert_on: str = _setting(
        "error", _one_of("error", "warn"), "least severity of failed checks that is told"
    )
    ui_url: str | None = _setting(None, _web_address, "address of the UI, for the links in alerts")
    fresh_within: float | None = _setting(
        None, _duration, "alert when nothing was materialized for so long: 24h, 7d"
    )
    plugins: tuple[str, ...] = _setting((), _names, "modules with filters and checks of your own")

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings: variables of the environment, then ``mm_assets.toml``, then defaults.

        An empty variable counts as unset.

        Args:
            environment: variables to read, without a file; None: those of the process, over the file.

        Raises:
            ValueError: (one line) a value does not fit, or a variable ``MM_…`` or key is no setting.
        """
        given = given_settings(environment)
        added = known_filters(load_plugins(given))[len(FILTERS) :]
        if added:
            cls = _with_settings_of(added)(cls)
        known = {variable(f.name): f for f in fields(cls)}
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0)[0]
                nearest = near.removeprefix(PREFIX).lower() if name in given.of_file else near
                raise ValueError(f"{given.place(name)}: no such setting; the nearest is {nearest}")
        values = {}
        for name, setting in known.items():
            if text := given.get(name):
                try:
                    values[setting.name] = setting.metadata["parse"](text)
                except ValueError as error:
                    place = given.place(name)
                    raise ValueError(
                        f"{place} {error}" if str(error).startswith("must") else f"{place}: {error}"
                    ) from error
        settings = cls(**values)
        for pair in (pair for kind in cls.filters for pair in kind.bounds()):
            low, high = (getattr(settings, name) for name in pair)
            if low is not None and high is not None and low > high:
                least, most = (given.place(variable(name)) for name in pair)
                raise ValueError(f"{least} is {low:g}, more than {most}, which is {high:g}")
        return settings

    def filter_values(self) -> dict[str, Any]:
        """The settings of the filters, by name; None for what is not set."""
        return {known.name: getattr(self, known.name) for known in settings_of(self.filters)}

    def raw_layout(self) -> dict[str, Any]:
        """Return the settings on documents of raw shards, as arguments of `RawReader`."""
        return {f.name: getattr(self, f.name) for f in fields(RawLayout)}


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def describe() -> dict[str, str]:
    """Return the meaning of each setting by its variable."""
    return {variable(f.name): f.metadata["meaning"] for f in fields(Settings)}
