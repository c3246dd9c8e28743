"""``mm-assets alerts``: sends a trial message to the targets of alerts."""

from __future__ import annotations

import argparse
from typing import Any

from mm_assets.terminal import FAILED


def add_to(commands: Any) -> None:
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
    test.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Send one message to each target, and print a line for each.

    Raises:
        ValueError: MM_ALERTS names no target.
    """
    from mm_assets.automation.alerts.messages import trial_message
    from mm_assets.automation.alerts.targets import targets
    from mm_assets.settings import Settings

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
