"""`python -m leadline VERB …`, where the command isn't on the path."""

from __future__ import annotations

import sys

from leadline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
