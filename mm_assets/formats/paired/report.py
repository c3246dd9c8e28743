"""Reports on shard groups: samples yielded and content left out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, repr=False)
class Names:
    """Names of keys or files: ``count`` in all; ``first`` has all of them, or as many as can be kept."""

    count: int
    first: list[str]

    def __repr__(self) -> str:
        return f"<{self.count} names: {self}>"

    def __str__(self) -> str:
        shown = self.first[:5]
        return f"{', '.join(map(repr, shown))}{', …' if len(shown) < self.count else ''}"


@dataclass(slots=True, repr=False)
class GroupReport:
    """Report on one shard group.

    ``keys`` counts the distinct keys of all modalities, ``incomplete`` those that at least one modality lacks
    (the policy ``skip`` drops them), ``samples`` those yielded. ``missing`` has the keys that a modality
    lacks and another has. ``unkeyed`` has the files of a modality whose names have no key and extension;
    webdataset does not read these either. ``left_out`` has those that macOS or tar had added. Modalities
    without any are left out of all three. ``error`` is the error that ended the group, else None.
    """

    urls: dict[str, str]
    keys: int = 0
    incomplete: int = 0
    samples: int = 0
    missing: dict[str, Names] = field(default_factory=dict)
    unkeyed: dict[str, Names] = field(default_factory=dict)
    left_out: dict[str, Names] = field(default_factory=dict)
    error: str | None = None

    def keep(self, room: int) -> int:
        """Keep at most ``room`` names and return the number kept."""
        kept = 0
        for names in (*self.missing.values(), *self.unkeyed.values(), *self.left_out.values()):
            del names.first[room - kept :]
            kept += len(names.first)
        return kept

    def __repr__(self) -> str:
        return f"<GroupReport {self}>"

    def __str__(self) -> str:
        parts = (
            [f"{self.keys} keys, of which {self.incomplete} are not in all modalities"]
            if self.keys or self.error is None
            else []
        )
        parts += [f"not in {name}: {keys.count} ({keys})" for name, keys in self.missing.items()]
        if 0 < self.keys == self.incomplete:
            parts.append("they have no key in common (rename_files can make names equal)")
        parts += [
            f"files without key and extension in {name}: {files.count} ({files})"
            for name, files in self.unkeyed.items()
        ]
        parts += [
            f"added by macOS or tar to {name}, and left out: {files.count} ({files})"
            for name, files in self.left_out.items()
        ]
        if self.error is not None:
            parts.append(f"ended after {self.samples} samples by {self.error}")
        return f"{' '.join(f'{name}={url}' for name, url in self.urls.items())}: {'; '.join(parts)}"
