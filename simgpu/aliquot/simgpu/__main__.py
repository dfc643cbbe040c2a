"""`python -m aliquot.simgpu`: see cli.py."""

import sys

from aliquot.simgpu.cli import main

sys.exit(main())
