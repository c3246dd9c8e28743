"""One loader for training: the samples of any output in a stated order, stopped and resumed anywhere.

`InterleavedDataset` has the samples of tars, an Arrow cache, a Lance table, Parquet, or paired tars;
`Mixture` draws from several by weights; `PackedDataset` fills sequences of tokens. See docs/training.md.
"""

from mm_assets.train.dataset import InterleavedDataset, Mixture, PackedDataset, count_tokens, pack
from mm_assets.train.loader import Loader

__all__ = ["InterleavedDataset", "Loader", "Mixture", "PackedDataset", "count_tokens", "pack"]
