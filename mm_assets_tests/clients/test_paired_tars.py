"""Paired tars in torch's DataLoader, and the examples of the specification as they are written there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mm_assets_tests.clients.environment import ROOT, clients_bin, run
from mm_assets_tests.formats.paired.shards import (
    payload,
    write_pair,
    write_pictures,
    write_shard,
    write_shards,
)
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = pytest.mark.clients

SCRIPTS = Path(__file__).with_name("open_with")
# The specification's text is not ours to copy: it is read in place. test_dataset.py and test_policies.py have
# what it says.
EXAMPLES = ROOT.parent / "shared" / "seeds" / "003_bdad4b65ead177a6.txt"


def script(name: str, *arguments: str | Path, **env: str) -> list[str]:
    command = [clients_bin("python"), SCRIPTS / f"{name}.py", *arguments]
    return run(command, PYTHONPATH=str(ROOT), **env).splitlines()


def on_nodes(
    folder: Path, count: int, start_method: str, policy: str, number: int = 2
) -> tuple[list[list[list[list[str]]]], list[str]]:
    """What each node saw in each pass, and what was logged."""
    lines = script("paired_dataloader", folder, str(count), start_method, policy, str(number))
    nodes = [json.loads(line) for line in lines if line.startswith("[")]
    assert len(nodes) == number
    return nodes, [line for line in lines if not line.startswith("[")]


def samples_of(keys: Iterable[str]) -> list[list[str]]:
    return [
        [key, payload("images", key).decode(), payload("embeddings", key).decode()] for key in sorted(keys)
    ]


def test_two_workers_on_two_nodes_see_each_sample_once_in_each_pass(tmp_path: Path) -> None:
    write_shards(tmp_path, 9)
    nodes, logged = on_nodes(tmp_path, 9, "fork", "error")

    assert logged == []
    for passes in zip(*nodes, strict=True):
        assert sorted(passes[0] + passes[1]) == samples_of(
            f"s{shard:04d}_{n}" for shard in range(9) for n in range(3)
        )
    for passes in nodes:
        # the order differs between passes
        assert len({tuple(key for key, *_ in found) for found in passes}) > 1
    assert on_nodes(tmp_path, 9, "fork", "error")[0] == nodes


def test_workers_that_are_spawned_see_each_sample_once_in_each_pass(tmp_path: Path) -> None:
    write_shards(tmp_path, 9)
    (passes,), logged = on_nodes(tmp_path, 9, "spawn", "error", 1)

    assert logged == []
    for found in passes:
        assert sorted(found) == samples_of(f"s{shard:04d}_{n}" for shard in range(9) for n in range(3))
    assert len({tuple(key for key, *_ in found) for found in passes}) > 1


def test_what_workers_skip_is_logged(tmp_path: Path) -> None:
    for shard in range(4):
        keys = [f"s{shard}_{n}" for n in range(4)]
        write_shard(tmp_path, "images", keys, f"shard_{shard:04d}")
        write_shard(
            tmp_path, "embeddings", keys[shard - 1 :: -1] if shard else [keys[0]], f"shard_{shard:04d}"
        )
    nodes, logged = on_nodes(tmp_path, 4, "fork", "skip")

    expected = samples_of(["s0_0", "s1_0", "s2_0", "s2_1", "s3_0", "s3_1", "s3_2"])
    for passes in zip(*nodes, strict=True):
        assert sorted(passes[0] + passes[1]) == expected
    assert Counter(
        line.split("not in embeddings: ")[1][0] for line in logged if line.startswith("WARNING")
    ) == Counter("3321")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that examples call /data."""
    folder = tmp_path_factory.mktemp("data")
    write_pictures(folder, 114, sizes=[(8, 8), (4, 6)])
    write_pair(folder / "misaligned", images="abc", embeddings="ac")
    for language in ("en", "fr"):
        for at in range(100):
            make_tar(folder / language / f"shard_{at:04d}.tar", [(f"c{at}.txt", language.encode())])
    return folder


@pytest.mark.skipif(
    not EXAMPLES.is_file(),
    reason=f"{EXAMPLES} is not on this machine; see test_dataset.py and test_policies.py",
)
def test_the_examples_run_as_written(data: Path) -> None:
    blocks: list[dict[str, Any]] = [json.loads(line) for line in script("paired_blocks", EXAMPLES, data)]
    assert len(blocks) == 16

    def told(what: str) -> dict[str, Any]:
        (block,) = (block for block in blocks if what in block["block"])
        return block

    errors = {blocks.index(block): block["error"] for block in blocks if block["error"] is not None}
    error, collision = told('missing_key_policy="error",'), told("captions_fr")
    assert errors == {blocks.index(error): error["error"], blocks.index(collision): collision["error"]}
    assert error["error"].startswith("key mismatch across modalities: images='b', embeddings='c'")
    assert collision["error"].startswith("extension key 'txt' from modality 'captions_fr' collides")
    assert told('missing_key_policy="skip",  # default')["keys"] == ["a", "c"]
    assert told("has_embedding")["keys"] == ["a", "b", "c"]
    assert len(told("caption = sample")["keys"]) == 200
    key, image_url, embedding_url = told('print(sample["__url_images__"])')["printed"][:3]
    assert (image_url, embedding_url) == tuple(
        f"{data}/{name}/shard_{key[7:11]}.tar" for name in ("images", "embeddings")
    )
    assert len(told("print(shard_group)")["printed"]) == 100
    assert len(told("DataPipeline")["keys"]) == 2
    assert told('print(sample["jpg"])')["printed"][0].startswith("sample_")
