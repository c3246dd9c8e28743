"""Commands of the graph: ``run``, ``ui``, ``prove``, ``alerts``; and ``init``, ``examples``, ``completion``.

run         the graph without a browser
ui          the graph in a browser, with the daemon
prove       every output read again
alerts      a trial message to the targets of alerts
init        a settings file with every setting, commented
examples    programs to copy
completion  names of commands and flags, for a shell
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from mm_assets.cli.arguments import add_set_flags, filters_with_overrides, number_of, variables_of
from mm_assets.settings import LOG_LEVELS, Settings
from mm_assets.storage import import_client
from mm_assets.terminal import FAILED, USAGE, fail, printable


def run_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="take raw shards through the graph, without a browser",
        description="Take raw shards (MM_RAW_SHARDS) through the graph, in runs of up to 100. What is up to "
        "date is neither read nor written again. With --missing, --failed or --changed only such shards "
        "are looked at.",
    )
    parser.add_argument("shards", nargs="*", metavar="SHARD", help="names of raw shards (default: all)")
    parser.add_argument("--assets", type=_names, default=(), metavar="A,B", help="these assets only")
    parser.add_argument(
        "--missing", dest="kinds", action="append_const", const="missing", help="shards that were never made"
    )
    parser.add_argument(
        "--failed", dest="kinds", action="append_const", const="failed", help="shards whose last run failed"
    )
    parser.add_argument(
        "--changed",
        dest="kinds",
        action="append_const",
        const="stale",
        help="shards made from other raw data, code or settings than there are now, or damaged since",
    )
    parser.add_argument(
        "--limit", type=number_of("a number of shards", 1, 18), metavar="N", help="at most N shards"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would be made, and why; looks into no raw shard and no benchmark",
    )
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="critical",
        help="least level of Dagster's events that are printed; failures always are (default: critical)",
    )
    add_set_flags(parser.add_argument_group("filters of this run, in the place of those of the settings"))
    parser.set_defaults(run=run_materialize)


def run_materialize(options: argparse.Namespace) -> int:
    """Run the graph; 0 only if every shard landed, lost no more than ``MM_MAX_LOSS`` and is proven."""
    if options.values or options.filter_preset is not None or options.filter_actions is not None:
        _use_filters(options)
    with with_dagster():
        from mm_assets.headless.request import MakeRequest
        from mm_assets.headless.run import run_graph

        request = MakeRequest(
            tuple(options.shards), options.assets, tuple(options.kinds or ()), options.limit
        )
        return run_graph(request, is_dry=options.dry_run, log_level=options.log_level)


# Imported by each worker's first jobs, and by this process later, or not at all.
_PRELOADED = (
    *("mm_assets.accounting.quarantine", "numpy.ma"),
    *(f"PIL.{kind}ImagePlugin" for kind in ("Bmp", "Gif", "Jpeg", "Png", "Tiff", "WebP")),
)


@contextmanager
def with_dagster() -> Iterator[None]:
    """Import Dagster, once there is a process that forks workers without it."""
    from mm_assets.headless.instance import import_dagster, watch_for_interrupts

    with ExitStack() as opened:
        is_first = "dagster" not in sys.modules
        settings = Settings.load()
        if is_first and settings.engine == "local":
            with _frozen_imports():
                import mm_assets.graph.shard_jobs
                import mm_assets.graph.shard_work
                import mm_assets.view.preview_scores  # this process needs them all
                from mm_assets.pool.workers import fork_server

                import_client([settings.storage, settings.raw_shards])
            opened.enter_context(fork_server(_PRELOADED))
        watch_for_interrupts()
        with _frozen_imports() if is_first else nullcontext():
            import_dagster()
            import mm_assets.headless.run  # noqa: F401
        yield


@contextmanager
def _frozen_imports() -> Iterator[None]:
    """Have the garbage collector pass over what is imported, also in processes that are forked off."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _use_filters(options: argparse.Namespace) -> None:
    """Give this process, and its workers, the filters that the flags ask for."""
    os.environ.update(variables_of(options))
    if Settings.load().active_filters() != filters_with_overrides(options):
        raise ValueError("--set NAME= cannot unset what a preset sets; give it a value that refuses nothing")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"not names separated by commas: {text!r}")
    return names


_HOST = "127.0.0.1"
_port = number_of("a port, 1 to 65535", 1, 18, 65535)


def ui_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("ui", help="serve the Dagster UI, with the daemon, on this machine")
    parser.add_argument("--port", type=_port, default=3000, help="port on 127.0.0.1 (default: 3000)")
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        help="least level of what is printed (default: MM_LOG_LEVEL, else warning)",
    )
    parser.set_defaults(run=run_ui)


def run_ui(options: argparse.Namespace) -> int:
    """Serve until a signal comes; errors of settings are told before."""
    import dagster  # noqa: F401  without it nothing is begun

    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.headless.instance import home_in_force, lock_home, open_instance, prepare_home, serve

    settings = Settings.load()
    RawLocations(settings.raw_shards)
    address = settings.ui_url or f"http://{_HOST}:{options.port}"
    home = home_in_force()
    if is_locked := home.is_dir():
        lock_home(home, address)
    if (reason := _why_not(options.port)) is not None:
        fail(f"port {options.port} of {_HOST}: {reason}; name another with --port")
        return USAGE
    with open_instance(prepare_home()):
        pass  # what is wrong with it is told in one line
    if not is_locked:
        lock_home(home, address)
    print(f"the UI: {address}", flush=True)
    level = options.log_level or settings.log_level
    os.environ |= {"MM_UI_URL": address, "MM_LOG_LEVEL": level}  # for the links of alerts, and for runs
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "true")
    # A look at 100,000 partitions takes half a minute of CPU; by default the daemon waits a minute.
    os.environ.setdefault("DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS", "300")
    print(f"Dagster on http://{_HOST}:{options.port}, in half a minute; Ctrl-C ends it", flush=True)
    return serve(_HOST, options.port, level)


def _why_not(port: int) -> str | None:
    """Return why nothing can be served at a port; None if it can."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            server.bind((_HOST, port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None


def prove_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "prove", help="read every output of the graph again: is every item as it was written?"
    )
    parser.add_argument(
        "shards",
        nargs="*",
        metavar="SHARD",
        help="names of shards (default: all, and unknown files beside them)",
    )
    parser.set_defaults(run=run_prove)


def run_prove(options: argparse.Namespace) -> int:
    """Prove the outputs; 0 only if every item is as it was written."""
    with with_dagster():
        from mm_assets.headless.run import prove

        return prove(options.shards)


def alerts_arguments(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "alerts",
        help="try the targets of alerts",
        description="Alerts are sent by the sensor `alerts` to the targets in MM_ALERTS.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    test = actions.add_parser(
        "test",
        help="send one message to each target",
        description="Send one message to each target in MM_ALERTS. Exit code 1 if one was not delivered.",
    )
    test.set_defaults(run=run_alerts)


def run_alerts(options: argparse.Namespace) -> int:
    """Send one message to each target, and print a line for each.

    Raises:
        ValueError: MM_ALERTS names no target.
    """
    from mm_assets.automation.alerts import trial_message
    from mm_assets.automation.alerts.delivery import targets

    settings = Settings.load()
    if not settings.alerts:
        raise ValueError("MM_ALERTS names no target; it takes Apprise URLs, separated by whitespace")
    message = trial_message(settings.ui_url or "")
    failed = False
    for target in targets(settings.alerts):
        reason = target.send(message)
        failed = failed or reason is not None
        print(f"{target}: {'delivered' if reason is None else f'not delivered: {reason}'}")
    return FAILED if failed else 0


_STORES = (
    "# --- object stores ---",
    "",
    "# Options of one bucket, or a part of it, where those of the environment are not right for it:",
    "# profile_name, or aws_access_key_id, aws_secret_access_key and aws_session_token, with region_name and",
    "# endpoint_url; of a web server, username and password.",
    "# At the end of the file: what follows the name in brackets belongs to it.",
    '# [stores."s3://bucket"]',
    '# profile_name = "curation"',
)


def init_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "init", help="write mm_assets.toml: every setting with its meaning and default"
    )
    parser.set_defaults(run=run_init)


def run_init(options: argparse.Namespace) -> int:
    """Write the file into the working directory.

    Raises:
        FileExistsError: there is one.
    """
    from mm_assets.settings_file import FILE

    try:
        with open(FILE, "x", encoding="utf-8") as file:
            file.write(settings_text())
    except FileExistsError as error:
        raise FileExistsError(f"{Path(FILE).resolve()}: there is one, and it stays as it is") from error
    print(f"{FILE}: every setting is in it, as a comment; remove the # in front of those that you set")
    return 0


_EXAMPLES = (".py", ".ipynb")


def examples_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("examples", help="copy programs that train, convert and extend")
    parser.add_argument("folder", type=Path, metavar="DIR", help="is made if it does not exist")
    parser.set_defaults(run=run_examples)


def run_examples(options: argparse.Namespace) -> int:
    """Copy the examples.

    Raises:
        FileExistsError: a file of such a name is there; nothing is copied.
    """
    source = Path(str(files("mm_assets"))) / "examples"
    names = sorted(path.name for path in source.iterdir() if path.suffix in _EXAMPLES)
    for name in names:
        if (options.folder / name).exists():
            raise FileExistsError(f"{options.folder / name}: it is there already, and stays as it is")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(source / name, options.folder / name)
        print(printable(str(options.folder / name)))
    return 0


def completion_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion",
        help="print what completes commands and flags in a shell",
        description='In ~/.bashrc or ~/.zshrc: eval "$(mm-assets completion bash)" (or zsh). '
        "In ~/.config/fish/config.fish: mm-assets completion fish | source",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run_completion)


def run_completion(options: argparse.Namespace) -> int:
    """Print the script, made of the parsers of all commands."""
    from mm_assets.cli import parser_of

    (commands,) = (each.choices for each in parser_of(())._actions if isinstance(each.choices, dict))
    words = {name: _words(parser) for name, parser in commands.items()}
    print(_for_fish(words) if options.shell == "fish" else _for_bash(words, options.shell))
    return 0


def _words(parser: argparse.ArgumentParser) -> dict[str, tuple[str, ...]]:
    """Return the values that may follow each flag of a command; of arguments without one, by an empty name.

    None are known for a file or a number.
    """
    found: dict[str, tuple[str, ...]] = {"": ()}
    for action in parser._actions:
        choices = tuple(getattr(action, "completions", None) or action.choices or ())
        for name in [each for each in action.option_strings if each.startswith("--")] or [""]:
            found[name] = (*found.get(name, ()), *choices)
    return found


def _for_bash(words: Mapping[str, Mapping[str, Sequence[str]]], shell: str) -> str:
    cases = []
    for command, flags in words.items():
        for name, values in flags.items():
            if name and values:
                cases.append(f'    "{command} {name}") words="{" ".join(values)}";;')
        of_command = [*flags[""], *filter(None, flags)]
        cases.append(f'    "{command} "*) words="{" ".join(of_command)}";;')
    lines = [
        *(["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []),
        "_mm_assets() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        '  case "${COMP_WORDS[1]} $before" in',
        *cases,
        "  esac",
        f'  if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(words)}"; fi',
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _mm_assets mm-assets",  # without a match: names of files
    ]
    return "\n".join(lines)


def _for_fish(words: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    lines = [f"complete -c mm-assets -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
    for command, flags in words.items():
        condition = f"complete -c mm-assets -n '__fish_seen_subcommand_from {command}'"
        for name, values in flags.items():
            takes = f" -{'x' if name else 'f'} -a '{' '.join(values)}'" if values else ""
            lines.append(f"{condition}{f' -l {name[2:]}' if name else ''}{takes}")
    return "\n".join(lines)


def settings_text() -> str:
    """Return a settings file in which every setting is a comment with its default."""
    lines = [
        "# Settings of mm-assets, read from the folder that a command is started in.",
        "# Variables of the environment (MM_STORAGE for `storage`, and so on) come first.",
        '# Each line has the default; "" and [] stand for: not set.',
    ]
    for setting in fields(Settings):
        if heading := setting.metadata["heading"]:
            lines += ["", f"# --- {heading} ---"]
        choices = " | ".join(setting.metadata["choices"])
        meaning = setting.metadata["meaning"] + (f" ({choices})" if choices else "")
        lines += ["", f"# {meaning}", f"# {setting.name} = {_toml(setting.metadata['written'])}"]
    lines += ["", *_STORES]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return '""'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
