"""`python -m aliquot.cli`."""

import sys

from aliquot.cli.main import main

sys.exit(main())
