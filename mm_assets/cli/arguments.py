"""Arguments that commands share: types of values, groups of flags, and what commands do alike with them.

* Types of arguments (`location`, `share`, `byte_size` and so on), for a `CommandParser`.
* Flags of filters, one for each of their settings (`add_filter_flags`), and filters of one command: those of
  the settings, with other values over them (`add_set_flags`).
* Flags that describe the layout of documents of others, with defaults from the environment
  (`add_layout_flags`).
* ``--storage`` of commands that work on the outputs of the graph (`add_storage_flag`).
* The page that ``--html FILE`` asks for (`write_page`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mm_assets import settings
from mm_assets.filters import Filter
from mm_assets.filters.registry import (
    NONE,
    PRESETS,
    chain_of,
    filters_of,
    known_filters,
    settings_of,
    with_preset,
)
from mm_assets.formats.names import FORMAT_TABLE, format_of, listed
from mm_assets.formats.webdataset import RawLayout
from mm_assets.model.errors import nearest
from mm_assets.settings import Settings, variable
from mm_assets.settings_file import given_settings
from mm_assets.storage.errors import located
from mm_assets.terminal import printable

if TYPE_CHECKING:
    from mm_assets.filters.chain import FilterChain


T = TypeVar("T")

_MOST_SHOWN = 1000  # characters


class CommandParser(argparse.ArgumentParser):
    """Parser that takes no flag but whole ones, and names the nearest to one that it does not know.

    Its sub-commands are parsed alike.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]  # argparse's overloads, in one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Refuse the first unknown flag, before anything else that is wrong."""
        given = list(sys.argv[1:] if args is None else args)
        is_ours = (lambda text: text.startswith("-")) if self._subparsers else (lambda text: text != "--")
        for text in takewhile(is_ours, given):
            flag = text.partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                near = get_close_matches(flag, self._option_string_actions, n=1)
                self.error(f"{flag}: no such flag{''.join(f'; the nearest is {name}' for name in near)}")
        return super().parse_known_args(given, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, usage or version; unlike argparse, without ignoring that stdout takes nothing."""
        if file is sys.stdout:
            with located("standard output"):
                file.write(message)
                file.flush()
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """End with what is wrong, without all flags, and without the whole of a text that is far too long."""
        from mm_assets.storage import without_secrets

        message = without_secrets(message)
        shown = message if len(message) <= _MOST_SHOWN else f"{message[:_MOST_SHOWN]}…"
        self.exit(2, f"usage: {self.prog} --help\n{self.prog}: error: {shown}\n")


def location(text: str) -> str:
    """Return a path, or a URL as `clean_url`; an empty one, which would mean some folder, is refused."""
    from mm_assets.storage import clean_url

    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: is a variable of the shell not set?")
    with suppress(ValueError):  # told in one line, where it is opened
        return clean_url(text)
    return text


def number_of(what: str, least: int, digits: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers: not below ``least``, of so many digits, not above ``most``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > digits or not least <= int(text) <= (most or int(text)):
            raise argparse.ArgumentTypeError(f"not {what}: {text!r}")
        return int(text)

    return parse


def share(text: str) -> float:
    """Parse a share from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"not a share from 0 to 1: {text!r}")
    return value


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return the type of a flag by the parser of a setting, for text that is UTF-8."""

    def parse_flag(given: str) -> T:
        try:
            return parse(settings.plain_text(given))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_flag


names = parsed(settings.names)


def as_utf8(argument: str) -> str:
    """Return an id as UTF-8, as in the data, whatever encoding the terminal has."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{argument!a} is not UTF-8, so it is the id of no sample") from error
    return argument


def filters_with_overrides(options: argparse.Namespace) -> tuple[Filter[Any], ...]:
    """Return the filters that are on, with what the flags say; ``NAME=`` unsets what a preset sets, too.

    Raises:
        ValueError: in one line, for an unknown name, and for values that do not fit.
    """
    over = variables_of(options)
    given = Settings.load({**given_settings(), **over})
    unset = [known.name for known in settings_of(given.filters) if over.get(variable(known.name)) == ""]
    found = {**given.filter_values(), **dict.fromkeys(unset)}
    return filters_of(given.filters, found, given.filter_actions)


def variables_of(options: argparse.Namespace) -> dict[str, str]:
    """Return what the flags say as variables of the environment.

    Raises:
        ValueError: in one line, for an unknown name, and for values that do not fit.
    """
    over = _over(options.values)
    if options.filter_preset is not None:
        over[variable("filter_preset")] = options.filter_preset
    if options.filter_actions is not None:
        over[variable("filter_actions")] = options.filter_actions
    Settings.load({**given_settings(), **over})
    return over


def _over(values: Sequence[str]) -> dict[str, str]:
    known = {setting.name for setting in settings_of(Settings.load().filters)}
    over: dict[str, str] = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--set {text!r}: write it as NAME=VALUE")
        if name not in known:
            raise ValueError(
                f"--set {name}: there is no such setting of a filter; {nearest(name, sorted(known))}"
            )
        over[variable(name)] = value
    return over


def refuse_other_than_file(target: str) -> None:
    """Raise an error for a folder, and for a device: the page replaces what has its name."""
    from mm_assets.storage.files import is_remote, local_path

    if target == "-":
        return
    path = Path(local_path(target))
    if target.endswith("/") or (not is_remote(target) and path.is_dir()):
        raise IsADirectoryError(f"{target}: a folder, not a file to write")
    if not is_remote(target) and path.exists() and not path.is_file():
        raise ValueError(f"{target}: no regular file; - is standard output")


def write_page(target: str, page: str) -> None:
    """Write a page to a file, and print its name; or to standard output."""
    from mm_assets.storage.files import absolute, publish_bytes

    if target == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(page.encode())
        return
    publish_bytes(absolute(target), page.encode())
    print(printable(target))


def flag(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


_TYPES: dict[type, Callable[[str], Any]] = {
    tuple: names,
    int: parsed(settings.whole_number),
    str: parsed(str),
}
_DEST = "filter setting "  # prefix of the name, which an option of the command may have, too


def add_filter_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from mm_assets.settings_file import load_plugins

    group = parser.add_argument_group("filters", "what is dropped; without a flag nothing is")
    filters = known_filters(load_plugins())
    for known in settings_of(filters):
        kind = _TYPES.get(known.kind, known.kind)
        name, meaning = known.name, known.meaning.replace("%", "%%")
        try:
            group.add_argument(flag(name), dest=_DEST + name, metavar=name.upper(), type=kind, help=meaning)
        except argparse.ArgumentError as error:
            raise ValueError(
                f"a filter of a plugin has the setting {name!r}: {flag(name)} is taken"
            ) from error
    group.add_argument(
        "--filter-preset", choices=tuple(PRESETS), default=NONE, help="filters that are set together"
    )
    group.add_argument(
        "--filter-actions",
        type=names,
        default=(),
        metavar="FILTER=ACTION,…",
        help="what filters do with what they refuse: drop_item, drop_sample or flag",
    )
    parser.set_defaults(filters=filters)


def add_set_flags(parser: argparse._ActionsContainer) -> None:
    """Declare the flags that give a command other filters than the settings do."""
    parser.add_argument(
        "--set",
        dest="values",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of a filter in the place of its value, such as min_sharpness=80; NAME= unsets it",
    )
    parser.add_argument("--filter-preset", metavar="PRESET", help="filters that are set together")
    parser.add_argument(
        "--filter-actions", metavar="FILTER=ACTION,…", help="what filters do with what they refuse"
    )


def chain_asked_for(options: argparse.Namespace) -> FilterChain | None:
    """Return the filters whose flags are given, as one step; None where there is no such flag."""
    values = {
        name.removeprefix(_DEST): value for name, value in vars(options).items() if name.startswith(_DEST)
    }
    values = with_preset(options.filter_preset, values)
    return chain_of(filters_of(options.filters, values, options.filter_actions))


_PREFIX = "sample_id_prefix"


def add_layout_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: the settings of raw documents."""
    layout = parser.add_argument_group("documents of others", "not given, MM_<NAME> of the environment holds")
    of_layout = {each.name for each in fields(RawLayout)}
    for known in (each for each in fields(Settings) if each.name in of_layout):
        choices = known.metadata["choices"]
        is_list = isinstance(known.default, tuple)
        layout.add_argument(
            flag(known.name),
            type=str if choices else parsed(known.metadata["parse"]),
            choices=choices or None,
            help=known.metadata["meaning"] + (", comma-separated" if is_list else ""),
        )


def layout_of(
    options: argparse.Namespace, kind: str, source: str, is_compared: bool = False
) -> dict[str, Any]:
    """Return the arguments of a format's reader that describe documents of others.

    There are none for formats without such documents. Sample ids in our own data have their prefix already:
    the setting is about raw shards. Only the flag adds another, unless ``is_compared``: then the flag is
    about the raw shards that the data are compared with.
    """
    layout = {
        name: value if getattr(options, name) is None else getattr(options, name)
        for name, value in Settings.load().raw_layout().items()
    }
    if (
        layout[_PREFIX] is not None
        and (is_compared or getattr(options, _PREFIX) is None)
        and is_ours(kind, source)
    ):
        layout[_PREFIX] = None
    return {name: layout[name] for name in format_of(kind).raw_options}


def layout_flags(options: argparse.Namespace) -> list[str]:
    """Return the names of the settings whose flags are given, of `add_layout_flags`."""
    return [name for name in Settings.load().raw_layout() if getattr(options, name) is not None]


def refuse_inapplicable_flags(options: argparse.Namespace, kind: str, source: str) -> None:
    """Refuse flags that do not apply to the data of this format at ``source``.

    Raises:
        ValueError: naming the flag.
    """
    from mm_assets.accounting.formats import accounted_format

    given = layout_flags(options)
    if not given:
        return
    if not format_of(kind).raw_options:
        titles = listed(entry.title for entry in FORMAT_TABLE if entry.raw_options)
        raise ValueError(f"{flag(given[0])} is for documents of others in {titles}, not for {kind}")
    options_for = accounted_format(kind).options_for
    if options_for is None:
        return
    file = _files(kind, source)[0]
    known, what = options_for(file)
    if inapplicable := [name for name in given if name not in known]:
        raise ValueError(f"{flag(inapplicable[0])} says nothing of {file}: {what}")


def is_ours(kind: str, source: str) -> bool:
    """Return whether the first readable file at ``source`` was written by this project.

    Always False for formats in which others write no documents.
    """
    from mm_assets.accounting.formats import accounted_format
    from mm_assets.storage.files import is_remote, regular_file

    if not format_of(kind).raw_options:
        return False
    for file in _files(kind, source):
        try:
            return accounted_format(kind).is_ours(file if is_remote(file) else regular_file(file))
        except (OSError, ValueError):  # this file alone fails when it is converted
            continue
    return False


def _files(kind: str, source: str) -> list[str]:
    from mm_assets.storage.listing import expand_paths

    return expand_paths(source, format_of(kind).suffixes)


def add_storage_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag to a command."""
    parser.add_argument(
        "--storage",
        type=location,
        help="storage root of the graph, a folder or URL (default: MM_STORAGE, else demo/storage)",
    )


def storage_root(options: argparse.Namespace) -> str:
    """Return the storage root that the flag names, else that of the settings, as absolute path or URL."""
    return absolute_root(options.storage or Settings.load().storage)


def absolute_root(root: str) -> str:
    """Return a storage root as absolute path or URL."""
    from mm_assets.storage.files import absolute

    return absolute(root).rstrip("/") or "/"


def refuse_other_folder(root: str, named_by: str = "--storage or MM_STORAGE") -> None:
    """Raise ``FileNotFoundError`` for a missing storage root, or one without any output or ledger."""
    from mm_assets.accounting import LEDGER_FOLDER, OUTPUTS
    from mm_assets.storage.errors import absent
    from mm_assets.storage.files import filesystem

    hint = f"name the storage root of the graph with {named_by}"
    fs, path = filesystem(root)
    try:
        found = {name.rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False)}
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{absent(root, fs, path, 'folder')}; {hint}") from error
    if found.isdisjoint({LEDGER_FOLDER, *(output.folder.partition("/")[0] for output in OUTPUTS)}):
        raise FileNotFoundError(f"{root}: no output of the graph is here; {hint}")


def add_policy_flag(parser: argparse.ArgumentParser) -> None:
    """Declare what becomes of samples with an error."""
    policy = (
        "of a sample with an error: its file fails (error), it is kept (warn), "
        "or left out and listed, the item or all of it"
    )
    parser.add_argument(
        "--on-materialize-error",
        default="error",
        choices=("error", "warn", "drop_row", "drop_sample"),
        help=policy,
    )


def reading_of(options: argparse.Namespace, kind: str, source: str) -> dict[str, Any]:
    """Return arguments of the reader, by the flags for layouts and errors."""
    layout = layout_of(options, kind, source)
    if not layout:
        return {}
    # A first pass over the rows of a sound file would only cost time.
    is_sound = format_of(kind).quarantine_rereads and is_ours(kind, source)
    return {"quarantine_errors": options.on_materialize_error != "error" and not is_sound, **layout}
