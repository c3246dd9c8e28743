"""HTML pages that are one file: nothing is loaded from elsewhere, and nothing in them runs."""
