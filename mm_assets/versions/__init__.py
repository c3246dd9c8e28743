"""Versions of the outputs: tags that mark their state, and the differences between two states."""
