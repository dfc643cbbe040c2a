"""`python -m aliquot.relay`."""

from __future__ import annotations

import sys

from aliquot.relay.main import main

if __name__ == "__main__":
    sys.exit(main())
