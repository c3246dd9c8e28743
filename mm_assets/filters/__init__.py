"""Scores of images, and filters that keep or drop items by them."""
