"""The set to train from: shuffled, split and weighted samples in shards of equal size."""
