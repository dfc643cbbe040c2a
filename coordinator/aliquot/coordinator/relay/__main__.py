"""`python -m aliquot.coordinator.relay`."""

from __future__ import annotations

import sys

from aliquot.coordinator.relay.main import main

if __name__ == "__main__":
    sys.exit(main())
