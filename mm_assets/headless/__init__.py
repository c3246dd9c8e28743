"""The headless run: the graph without a browser."""
