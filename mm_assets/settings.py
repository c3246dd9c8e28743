"""Settings of the graph: one table of names, defaults and meanings (`Settings`), and their parsers.

A parser takes the text of a variable and returns its value. It raises ``ValueError`` in one line, which
begins with "must" where the setting's name fits in front.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar
from zoneinfo import available_timezones

from mm_assets.accounting.contract import SCHEMA_CHANGES
from mm_assets.filters import Filter, FilterSetting, FilterSettingError
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.filters.registry import (
    FILTERS,
    NONE,
    PRESETS,
    filters_of,
    known_filters,
    measures_for,
    settings_of,
    with_preset,
)
from mm_assets.formats.document_layouts import LAYOUT_NAMES
from mm_assets.formats.names import SPLIT_NAME
from mm_assets.formats.paired import MISSING_KEY_POLICIES
from mm_assets.formats.partitions import parse_bytes
from mm_assets.formats.webdataset import (
    DEFAULT_IMAGE_EXTENSIONS,
    DEFAULT_JSON_EXTENSIONS,
    IMAGES,
    SAMPLE_ID_PREFIXES,
    TEXTS,
    RawLayout,
    normal_extensions,
)
from mm_assets.model.digest import DECLARED_DIGESTS
from mm_assets.model.losses import POLICIES
from mm_assets.settings_file import PREFIX, SPACED, given_settings, load_plugins
from mm_assets.storage import clean_url, without_secrets
from mm_assets.storage.errors import is_utf8

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_RAY_ADDRESS = re.compile(r"(?:ray://)?(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_MOST_DIGITS = 18
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_LONGEST = 100_000 * 86400.0  # seconds of a duration; much more is no time span of Python's
_URL = re.compile(r"[A-Za-z][A-Za-z0-9]+://.")


@dataclass(frozen=True)
class OneOf:
    """A parser that takes one of some names."""

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.names:
            raise ValueError(f"must be one of {', '.join(self.names)}, not {text!r}")
        return text


def one_of(*names: str) -> OneOf:
    """Return a parser that takes one of these names."""
    return OneOf(names)


def number(
    kind: Callable[[str], Any], most: float = float("inf"), above: float | None = None
) -> Callable[[str], Any]:
    """Return a parser of numbers from 0, or from ``above`` without that itself, to ``most``."""

    def parse(text: str) -> Any:
        try:
            value = whole_number(text) if kind is int else kind(text)
        except ValueError as error:
            raise error if kind is int else ValueError(f"must be a number, not {text!r}") from error
        if math.isnan(value):
            raise ValueError(f"must be a number, not {text!r}")
        if value < 0:
            raise ValueError(f"must not be negative: {text}")
        if above is not None and value <= above:
            raise ValueError(f"must be more than {above:g}, not {text}")
        if value > most:
            raise ValueError(f"must be at most {most:g}, not {text}")
        return value

    return parse


def whole_number(text: str) -> int:
    """Return a whole number of no more than 18 digits: longer ones fit no column, and no float beyond 308."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"must be a whole number of at most {_MOST_DIGITS} digits")
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"must be a whole number, not {text!r}") from error


def plain_text(text: str) -> str:
    """Check that a text can be written to any file: it is UTF-8, and has no null character."""
    if "\0" in text or not is_utf8(text):
        raise ValueError("must be UTF-8 text without null characters")
    return text


def byte_size(text: str) -> str:
    """Check a size in bytes, and return it as written."""
    parse_bytes(text)
    return text


def cron(text: str) -> str:
    """Check a cron expression: five fields, or a name such as ``@daily``."""
    refused = (
        f"must be a cron expression of five fields, of a time that comes, such as '0 2 * * *', not {text!r}"
    )
    if len(text.split()) != 5 and not text.startswith("@"):
        raise ValueError(refused)
    try:
        import dagster as dg
    except ImportError:  # without Dagster there is no schedule
        return text
    try:
        dg.ScheduleDefinition(name="checked", job_name="checked", cron_schedule=text)
    except dg.DagsterInvalidDefinitionError as error:
        raise ValueError(refused) from error
    return text


def time_zone(text: str) -> str:
    """Check the IANA name of a time zone, where this machine knows any."""
    zones = available_timezones()
    if zones and text not in zones:
        raise ValueError(f"must be the name of a time zone, such as Europe/Berlin, not {text!r}")
    return text


def machine_zone() -> str:
    """Return the IANA name of this machine's time zone; UTC where it tells none."""
    stated = os.environ.get("TZ", "").lstrip(":") or os.path.realpath("/etc/localtime")
    name = stated.rpartition("/zoneinfo/")[2]
    return name if name in available_timezones() else "UTC"


def names(text: str) -> tuple[str, ...]:
    """Return names that commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def suffixes(text: str) -> tuple[str, ...]:
    """Return suffixes of file names, as written, that commas separate."""
    found = names(text)
    normal_extensions(found)
    return found


def split_shares(text: str) -> tuple[tuple[str, float], ...]:
    """Return the splits of a training set with their shares, which are 1 together."""
    found: dict[str, float] = {}
    for part in names(text):
        name, _, share = (each.strip() for each in part.partition("="))
        if not SPLIT_NAME.fullmatch(name) or name in found:
            raise ValueError(
                f"must be splits of different names, such as train=0.98,validation=0.02, not {text!r}"
            )
        found[name] = number(float, 1)(share)
    if not found or abs(math.fsum(found.values()) - 1) > 1e-9 or 0 in found.values():
        raise ValueError(f"must be shares above 0 that are 1 together, not {text!r}")
    return tuple(found.items())


def output_root(text: str) -> str:
    """Return a folder or `clean_url`."""
    return clean_url(os.path.expanduser(text))


def raw_locations(text: str) -> str:
    """Return locations as written in a shell, each URL of them as `clean_url`."""
    try:
        items = shlex.split(text)
    except ValueError:  # told where they are listed
        items = []
    cleaned = list(map(clean_url, items))
    return text if cleaned == items else shlex.join(cleaned)


def owners(text: str) -> tuple[str, ...]:
    """Return owners as Dagster takes them, separated by commas: e-mail addresses and ``team:name``."""
    found = names(text)
    for owner in found:
        if not (_EMAIL.fullmatch(owner) or owner.removeprefix("team:") not in ("", owner)):
            raise ValueError(f"must be e-mail addresses, or teams as in team:data, not {owner!r}")
    return found


def duration(text: str) -> float:
    """Return the seconds of a duration such as 90m, 24h or 7d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not match or not float(match[1]):
        raise ValueError(f"must be a duration such as 90m, 24h or 7d, not {text!r}")
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    if seconds > _LONGEST:
        raise ValueError(f"must be at most {_LONGEST / 86400:.0f}d")
    return seconds


def time_limit(text: str) -> float | None:
    """Return the seconds of a number or a duration; None for 0: no limit."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
        with suppress(ValueError):
            seconds = duration(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"must be seconds, or a duration such as 90s, 30m or 2h; 0: no limit; not {text!r}")
    return seconds or None


def ray_host_and_port(address: str) -> tuple[str, int] | None:
    """Return host and port of ``host:port`` or ``ray://host:port``; None for any other address."""
    match = _RAY_ADDRESS.fullmatch(address)
    return None if match is None else (match[1].strip("[]"), int(match[2]))


def ray_address(text: str) -> str:
    """Check that a text is ``auto`` or has a host and a port."""
    if text != "auto" and ray_host_and_port(text) is None:
        raise ValueError(f"must be auto, host:port or ray://host:port, not {text!r}")
    return text


def alert_targets(text: str) -> tuple[str, ...]:
    """Return words as a shell would; each begins like a URL, which may be a secret and is not repeated."""
    found = tuple(shlex.split(text))
    for place, url in enumerate(found, start=1):
        if not _URL.match(url):
            number = f"number {place} of them" if len(found) > 1 else "this"
            raise ValueError(f"must be Apprise URLs, such as json://host:8080/path; {number} is none")
    return found


def web_address(text: str) -> str:
    """Check that a text begins like a web address."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, not {text!r}")
    if without_secrets(text) != text:
        raise ValueError("must hold no user, password or token: it is sent to all whom alerts go to")
    return text


_MOST_SHOWN = 200  # characters of a value in a message
S = TypeVar("S", bound="Settings")


def _setting(
    default: Any,
    parse: Callable[[str], Any],
    meaning: str,
    heading: str = "",
    is_secret: bool = False,
    written: str | None = None,
) -> Any:
    """Return a field.

    Args:
        heading: that of the settings file above it and those that follow.
        is_secret: its value is never shown.
        written: the default as a user writes it; None: as it is.
    """
    metadata = {
        "parse": parse,
        "meaning": meaning,
        "heading": heading,
        "choices": parse.names if isinstance(parse, OneOf) else (),
        "written": default if written is None else written,
    }
    return field(default=default, repr=not is_secret, metadata=metadata)


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    float: number(float),
    int: number(int),
    str: str,
    tuple: names,
}


def _parser(known: FilterSetting) -> Callable[[str], Any]:
    return number(known.kind, above=0) if known.is_upper_bound else _PARSERS[known.kind]


def _with_settings_of(filters: tuple[type[Filter[Any]], ...]) -> Callable[[type[S]], type[S]]:
    """The settings of filters as further fields of a class of settings; all are unset by default."""

    def decorate(cls: type[S]) -> type[S]:
        added = [
            (known.name, Any, _setting(None, _parser(known), known.meaning)) for known in settings_of(filters)
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

    filters: ClassVar[tuple[type[Filter[Any]], ...]] = ()

    raw_shards: str = _setting(
        "demo/raw", raw_locations, "locations of raw shards, separated by whitespace", "data"
    )
    shards_per_partition: int = _setting(
        1, number(int, above=0), "raw shards in one partition, grouped by the numbers in their names"
    )
    storage: str = _setting("demo/storage", output_root, "output root: a folder or a URL")
    filtered: str = _setting(
        "copy",
        one_of("copy", "reference"),
        "images of filtered Parquet: a copy, or a reference to those in curated Parquet",
    )
    workers: int = _setting(0, number(int), "worker processes of a run; 0: one for every core")
    shard_timeout: float | None = _setting(
        3600.0,
        time_limit,
        "seconds (or 90s, 30m, 2h) that a worker may take for a shard in one asset; 0: no limit",
        written="1h",
    )
    engine: str = _setting(
        "local", one_of("local", "ray"), "where shards are worked on: processes of the run, or a Ray cluster"
    )
    ray_address: str = _setting(
        "auto", ray_address, "the Ray cluster: `auto`, `host:port` or `ray://host:port`"
    )
    on_materialize_error: str = _setting(
        "drop_sample", one_of(*POLICIES), "what becomes of an item that cannot be had"
    )
    max_loss: float = _setting(
        0.5,
        number(float, 1),
        "share of a shard's members and items that may be quarantined, unreferenced or unreadable",
    )
    sample_id_field: str | None = _setting(
        None, str, "json field, or column, with the sample id", "layout of the raw documents"
    )
    sample_id_prefix: str | None = _setting(
        None, one_of(*SAMPLE_ID_PREFIXES), "`shard`: the partition's name in front of each sample id"
    )
    texts_field: str = _setting(TEXTS, str, "json field, or column, with the list of texts")
    images_field: str = _setting(IMAGES, str, "json field, or column, with the list of images")
    document_layout: str | None = _setting(
        None, one_of(*LAYOUT_NAMES), "layout of the documents; not set: found by looking at them"
    )
    images_from: str = _setting(
        "", raw_locations, "folders and tars with images that documents only name, separated by whitespace"
    )
    declared_digests: str | None = _setting(
        None,
        one_of(*DECLARED_DIGESTS),
        "images compared with their sha256 or md5: `off`, or `all`, those that img2dataset decoded, too",
    )
    image_member_field: str | None = _setting(None, str, "json field that names the sample's image member")
    image_extensions: tuple[str, ...] = _setting(
        DEFAULT_IMAGE_EXTENSIONS, suffixes, "suffixes of image members"
    )
    json_extensions: tuple[str, ...] = _setting(
        DEFAULT_JSON_EXTENSIONS, suffixes, "suffixes of the members that are documents"
    )
    per_image_fields: tuple[str, ...] = _setting((), names, "json lists with one value per image")
    per_text_fields: tuple[str, ...] = _setting((), names, "json lists with one value per text")
    missing_keys: str = _setting(
        "skip", one_of(*MISSING_KEY_POLICIES), "of paired shards: a sample that a modality lacks"
    )
    decode_fraction: float = _setting(
        0.01, number(float, 1), "share of the images that is decoded to the last pixel", "limits and checks"
    )
    max_image_pixels: int = _setting(
        MAX_PIXELS, number(int, above=0), "an image of more pixels is a decompression bomb"
    )
    max_member_bytes: str = _setting(
        "1GiB", byte_size, "a larger member of a tar, or image in Parquet, is not read"
    )
    hash_lists: tuple[str, ...] = _setting(
        (), names, "files or URLs with hashes of images that may not come in: sha256, md5, pdq"
    )
    schema_changes: str = _setting(
        "refuse", one_of(*SCHEMA_CHANGES), "a shard whose types do not fit the published ones"
    )
    training_split: tuple[tuple[str, float], ...] = _setting(
        (("train", 1.0),),
        split_shares,
        "share of each split of the training set, as train=0.98,validation=0.02; the id decides",
        "training set",
        written="train=1",
    )
    training_split_by: str | None = _setting(
        None, str, "column of samples that stay in one split; `domain(url)`: the domain of a column of URLs"
    )
    training_shard_size: int = _setting(
        512 << 20, parse_bytes, "most bytes of one of its tars", written="512MiB"
    )
    training_seed: int = _setting(0, number(int), "seed of its order")
    training_weight_by: str | None = _setting(
        None, str, "column or sample score by which samples are used more often in the first split, or less"
    )
    training_tokens: str | None = _setting(
        None, str, "column or sample score with the number of tokens of a sample"
    )
    automation: str = _setting(
        "off",
        one_of("off", "new", "all"),
        "what is made without a click: nothing, raw shards that arrive, or whatever has changed, too",
        "operation",
    )
    refresh_cron: str | None = _setting(
        None, cron, "when shards that are missing, failed or stale are made: a cron expression"
    )
    prove_cron: str | None = _setting(None, cron, "when every output is read and proven again")
    maintenance_cron: str | None = _setting(
        None, cron, "when the table is compacted, and old versions, logs and temporary files are removed"
    )
    timezone: str | None = _setting(
        None, time_zone, "time zone of these cron expressions, such as Europe/Berlin; not set: the machine's"
    )
    log_level: str = _setting(
        "warning",
        one_of(*LOG_LEVELS),
        "least level of what servers and their runs print; the UI has every event",
    )
    alerts: tuple[str, ...] = _setting(
        (), alert_targets, "where alerts go: Apprise URLs, separated by whitespace", is_secret=True
    )
    alert_on: str = _setting("error", one_of("error", "warn"), "least severity of failed checks that is told")
    alert_remind: float | None = _setting(
        7 * 86400.0, time_limit, "what still holds after so long is told again: 24h, 7d; 0: never"
    )
    ui_url: str | None = _setting(None, web_address, "address of the UI, for the links in alerts")
    fresh_within: float | None = _setting(
        None, duration, "alert when nothing was materialized for so long: 24h, 7d"
    )
    owners: tuple[str, ...] = _setting(
        (), owners, "owners of the assets in the UI: e-mail addresses, and teams as in team:data"
    )
    plugins: tuple[str, ...] = _setting(
        (), names, "modules with filters, measures, checks, sources of your own"
    )
    scores: tuple[str, ...] = _setting(
        (), names, "scores that are measured although no filter looks at them: sharpness, sha256 …", "filters"
    )
    clip_model: str | None = _setting(
        None, os.path.expanduser, "folder with a CLIP model, for clip_similarity and clip_embedding"
    )
    clip_networks: str | None = _setting(
        None, str, "scores by networks over clip_embedding, as name=file.safetensors, separated by whitespace"
    )
    stopwords: str | None = _setting(
        None, os.path.expanduser, "file with a stopword on each line; not set: English ones"
    )
    flagged_words: str | None = _setting(
        None, os.path.expanduser, "file with a word on each line, for flagged_words"
    )
    common_words: str | None = _setting(
        None, os.path.expanduser, "file with a word on each line, for common_words"
    )
    filter_preset: str = _setting(
        NONE, one_of(*PRESETS), "filters that are set together; settings of their own come before it"
    )
    filter_actions: tuple[str, ...] = _setting(
        (), names, "what filters do with what they refuse, as sharpness=flag: drop_item, drop_sample or flag"
    )

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings: variables of the environment, then ``mm_assets.toml``, then defaults.

        An empty variable counts as unset.

        Args:
            environment: variables to read, without a file; None: those of the process, over the file.

        Raises:
            ValueError: (one line) a value does not fit, or a variable ``MM_…`` or key is not a setting.
        """
        given = given_settings(environment)
        added = known_filters(load_plugins(given))[len(FILTERS) :]
        if added:
            cls = _with_settings_of(added)(cls)
        known = {variable(f.name): f for f in fields(cls)}
        for name in given:
            if name not in known:
                nearest = "".join(
                    f"; the nearest is {near.removeprefix(PREFIX).lower() if name in given.of_file else near}"
                    for near in get_close_matches(name, known, n=1, cutoff=0.6)
                )
                raise ValueError(f"{given.place(name)}: no such setting{nearest}")
        values = {}
        for name, setting in known.items():
            if text := given.get(name):
                takes_list = name in SPACED or setting.metadata["parse"] in (names, owners, suffixes)
                try:
                    plain_text(text)
                    if name in given.lists and not takes_list:
                        raise ValueError("must be one value, not a list")
                    values[setting.name] = setting.metadata["parse"](text)
                except ValueError as error:
                    place, reason = given.place(name), str(error).replace(text, _shown(text))
                    raise ValueError(
                        f"{place} {reason}" if reason.startswith("must") else f"{place}: {reason}"
                    ) from error
        settings = cls(**values)
        for pair in (pair for kind in cls.filters for pair in kind.bounds()):
            low, high = (getattr(settings, name) for name in pair)
            if low is not None and high is not None and low > high:
                least, most = (given.place(variable(name)) for name in pair)
                raise ValueError(f"{least} is {low:g}, more than {most}, which is {high:g}")
        try:
            settings.active_filters()
        except FilterSettingError as error:
            raise ValueError(f"{given.place(variable(error.setting))}: {error.reason}") from error
        return settings

    def filter_values(self) -> dict[str, Any]:
        """The settings of the filters, by name, those of the preset among them; None for what is not set."""
        given = {known.name: getattr(self, known.name) for known in settings_of(self.filters)}
        return {**given, **with_preset(self.filter_preset, given)}

    def active_filters(self) -> tuple[Filter[Any], ...]:
        """Return the filters that are turned on.

        Raises:
            ValueError: (one line) an action, a condition or a score does not fit.
        """
        filters = filters_of(self.filters, self.filter_values(), self.filter_actions)
        measures_for(filters, self.scores)
        return filters

    def raw_layout(self) -> dict[str, Any]:
        """Return the settings on documents of raw shards, as arguments of `RawReader`."""
        return {f.name: getattr(self, f.name) for f in fields(RawLayout)}


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def describe() -> dict[str, str]:
    """Return the meaning of each setting by its variable."""
    return {variable(f.name): f.metadata["meaning"] for f in fields(Settings)}
