"""`python -m aliquot.agent`: the same as the command `aliquot-agent`."""

import sys

from aliquot.agent.main import main

sys.exit(main())
