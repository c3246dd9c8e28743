"""Entry point of ``python -m mm_assets.cli``, the same as ``mm-assets``."""

from mm_assets.cli import enter

if __name__ == "__main__":
    enter()
