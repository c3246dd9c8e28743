"""Scores of images and samples, and filters that keep or drop them by their scores."""
