"""What a shard group gave and what was left out of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Names:
    """``count`` keys or files; ``first`` has all of them, or the first where that would be too many to keep."""

    count: int
    first: list[str]

    def __str__(self) -> str:
        shown = self.first[:5]
        return f"{', '.join(map(repr, shown))}{', …' if len(shown) < self.count else ''}"


@dataclass(slots=True)
class GroupReport:
    """One shard group.

    ``keys`` counts the different keys of all modalities, ``incomplete`` those that at least one modality
    lacks (the policy ``skip`` drops them), ``samples`` what was yielded. ``missing`` has the keys that a
    modality lacks though another has them, ``unkeyed`` its files whose names make no key and extension, which
    webdataset does not read either; modalities without any are left out. ``error`` is what ended the group,
    None if nothing did.
    """

    urls: dict[str, str]
    keys: int = 0
    incomplete: int = 0
    samples: int = 0
    missing: dict[str, Names] = field(default_factory=dict)
    unkeyed: dict[str, Names] = field(default_factory=dict)
    error: str | None = None

    def keep(self, room: int) -> int:
        """Keep at most ``room`` names and return how many that are."""
        kept = 0
        for names in (*self.missing.values(), *self.unkeyed.values()):
            del names.first[room - kept :]
            kept += len(names.first)
        return kept

    def __str__(self) -> str:
        told = (
            [f"{self.keys} keys, of which {self.incomplete} are not in all modalities"]
            if self.keys or self.error is None
            else []
        )
        told += [f"not in {name}: {keys.count} ({keys})" for name, keys in self.missing.items()]
        if 0 < self.keys == self.incomplete:
            told.append("they have no key in common (rename_files can make names equal)")
        told += [
            f"files without key and extension in {name}: {files.count} ({files})"
            for name, files in self.unkeyed.items()
        ]
        if self.error is not None:
            told.append(f"ended after {self.samples} samples by {self.error}")
        return f"{' '.join(f'{name}={url}' for name, url in self.urls.items())}: {'; '.join(told)}"
