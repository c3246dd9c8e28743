"""What a headless run shall make: shards and assets, all of them or what is due."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import dagster as dg

from mm_assets.automation.due_shard_finder import DueShardFinder
from mm_assets.automation.due_shards import STALE, Due, DueShards
from mm_assets.formats.raw_shards import Listing
from mm_assets.interleaved.counted import counted
from mm_assets.interleaved.errors import DataError
from mm_assets.partitions import chunks

_NAMED = 5  # shards in the line of a reason
_RUN = re.compile(r"\brun [0-9a-f]{8}\b")


@dataclass(frozen=True)
class MakeRequest:
    """What the user asks for.

    Args:
        shards: partitions to make; none: all.
        assets: names of assets; none: all.
        kinds: make only what is missing, failed or stale (`due_shards`); none: everything.
        limit: largest number of shards.
    """

    shards: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Selection:
    """What a run shall make: partitions by the assets that they are made in.

    ``why`` has the reason of each partition that is due, by asset. ``skipped`` is the number of shards beyond
    the limit.
    """

    groups: Mapping[tuple[dg.AssetKey, ...], Sequence[str]]
    why: Mapping[dg.AssetKey, Mapping[str, Due]]
    skipped: int = 0

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for keys in self.groups.values() for key in keys))

    @property
    def keys_by_asset(self) -> dict[str, list[str]]:
        """The partitions to make, by name of the asset."""
        found: dict[str, list[str]] = {}
        for assets, keys in self.groups.items():
            for asset in assets:
                found.setdefault(asset.to_user_string(), []).extend(keys)
        return found

    def with_reasons(self, more: Mapping[dg.AssetKey, Mapping[str, Due]]) -> Selection:
        """Return the selection with reasons of partitions that have none so far."""
        names = [*self.why, *(asset for asset in more if asset not in self.why)]
        return replace(
            self, why={asset: {**more.get(asset, {}), **self.why.get(asset, {})} for asset in names}
        )

    def runs(self, order: Sequence[str]) -> list[tuple[tuple[dg.AssetKey, ...], list[str]]]:
        """Return the assets and partitions of each run.

        Args:
            order: all partitions, as they were added.
        """
        return [
            (assets, keys) for assets, all_keys in self.groups.items() for keys in chunks(all_keys, order)
        ]

    def lines(self) -> list[str]:
        """Return what would be made, and why: a line for each reason and the assets that it is true of.

        Assets that are due only because an input is, stand in the line of that input's reason.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for key in self.keys:
            places: dict[str, tuple[list[str], list[str]]] = {}
            for asset, why in ((asset, due[key]) for asset, due in self.why.items() if key in due):
                root = why
                while (above := self._above(root, key)) is not None:
                    root = above
                text = _RUN.sub("a run", root.reason)
                text = text if text.startswith(root.kind) else f"{root.kind}: {text}"
                own, others = places.setdefault(text, ([], []))
                (own if root is why else others).append(asset.to_user_string())
            for text, (own, others) in places.items():
                found.setdefault((text, self._where(own, others)), []).append(key)
        lines = []
        for (text, where), keys in found.items():
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            named = f"{', '.join(keys[:_NAMED])}{more}"
            lines.append(f"{text}: {counted(len(keys), 'shard')} in {where} ({named})")
        return lines

    def _above(self, why: Due, key: str) -> Due | None:
        """Return why the input is due, where an asset is for no reason but that."""
        return self.why.get(why.parent, {}).get(key) if why.kind == STALE and why.parent else None

    def _where(self, own: Sequence[str], others: Sequence[str]) -> str:
        """Return the assets of a reason: those that it is true of, and those that are made from these."""
        if len(own) == len(self.why) > 1:
            return f"{len(own)} assets"
        is_all = len(own) + len(others) == len(self.why)
        made_from = f", and in {'all that' if is_all else 'what'} is made from it" if others else ""
        names = f": {', '.join(others)}" if others and not is_all else ""
        return f"{', '.join(own)}{made_from}{names}"


def select(
    request: MakeRequest,
    instance: dg.DagsterInstance,
    specs: Sequence[dg.AssetSpec],
    listing: Listing,
    absent: Sequence[str] = (),
    explains: bool = False,
) -> Selection:
    """Return what is to be made of the raw shards that are there.

    Args:
        absent: partitions to take, too, where all are: they fail.
        explains: whether to say also of a request for everything what is due in it.

    Raises:
        DataError: for a shard or an asset that there is not; the message has the nearest name.
    """
    materializable = [spec.key for spec in specs if spec.deps]
    names = {key.to_user_string(): key for key in materializable}
    for spec in specs:
        if not spec.deps and spec.key.to_user_string() in request.assets:
            raise DataError(f"{spec.key.to_user_string()!r}: an asset that is observed, not made")
    assets = [names[known(name, names, "asset")] for name in dict.fromkeys(request.assets)] or materializable
    named = [known(key, listing, "raw shard") for key in dict.fromkeys(request.shards)]
    keys = named or [*listing, *absent]
    due = DueShards()
    if request.kinds or explains:
        versions = {key: shard.version for key, shard in listing.items()}
        due = DueShardFinder(instance, specs, versions).find(assets).restricted(set(keys))
    if request.kinds:
        due = due.where(lambda why: not why.kinds.isdisjoint(request.kinds))
        keys = due.partitions()
    chosen = keys if request.limit is None else keys[: request.limit]
    if request.kinds:
        groups = due.restricted(set(chosen)).by_assets()
    else:
        groups = {tuple(assets): chosen} if chosen else {}
    return Selection(groups, due.by_asset, len(keys) - len(chosen))


def known(name: str, names: Collection[str], what: str) -> str:
    """Return a name that there is.

    Raises:
        DataError: there is none such; the message says of ``what``, and has the nearest one.
    """
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    raise DataError(f"{name!r}: no such {what}" + (f"; the nearest is {near[0]!r}" if near else ""))
