"""What the `datasets` library finds in the head of a Hugging Face card."""

from __future__ import annotations

from typing import Any

import yaml


def parsed(card: str) -> dict[str, Any]:
    lines = card.splitlines()
    assert lines[0] == "---"
    return dict(yaml.safe_load("\n".join(lines[1 : lines.index("---", 1)])))


def features(card: str) -> dict[str, Any]:
    """Features by name, as the `datasets` library would take them: it pops ``name`` from each: none may be
    shared.
    """
    listed = parsed(card)["dataset_info"]["features"]
    seen: set[int] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict | list):
            assert id(node) not in seen, "a YAML anchor"
            seen.add(id(node))
            for child in node.values() if isinstance(node, dict) else node:
                walk(child)

    walk(listed)
    return {feature.pop("name"): feature for feature in listed}
