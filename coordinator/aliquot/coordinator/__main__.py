"""`python -m aliquot.coordinator`."""

from __future__ import annotations

import sys

from aliquot.coordinator.main import main

if __name__ == "__main__":
    sys.exit(main())
