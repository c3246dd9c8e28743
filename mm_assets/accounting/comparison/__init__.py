"""Comparison of two datasets, or two outputs of one shard, in any formats; differences are named."""

from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.comparison.compare import Comparison, compare
from mm_assets.accounting.comparison.dataset import Dataset
from mm_assets.accounting.comparison.row_differences import Difference

__all__ = ["CanonicalSource", "Comparison", "Dataset", "Difference", "compare"]
