"""Entry point of ``python -m mm_assets.cli``, the same as ``mm-assets``."""

import sys

from mm_assets.cli import main

if __name__ == "__main__":
    sys.exit(main())
