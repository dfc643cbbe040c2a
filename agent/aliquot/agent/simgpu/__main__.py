"""`python -m aliquot.agent.simgpu`: see cli.py."""

import sys

from aliquot.agent.simgpu.cli import main

sys.exit(main())
