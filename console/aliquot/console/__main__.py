"""`python -m aliquot.console`."""

import sys

from aliquot.console.main import main

sys.exit(main())
