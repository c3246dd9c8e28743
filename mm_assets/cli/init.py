"""The command ``mm-assets init``: a settings file with every setting, commented."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

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


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "init", help="write mm_assets.toml: every setting with its meaning and default"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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


def settings_text() -> str:
    """Return a settings file in which every setting is a comment with its default."""
    from mm_assets.settings import Settings

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
