"""An agent that knows a kind of devices more: `--devices replay:FILE` plays a recorded trace."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import cast

from aliquot.agent.devices import kinds
from aliquot.agent.main import main
from tests.devices.replay import ReplayBackend, read_trace

REPLAY = kinds.Row(lambda rest: ReplayBackend(read_trace(Path(rest))), lambda: False, loads_library=False, takes="FILE")

if __name__ == "__main__":
    cast(MutableMapping[str, kinds.Row], kinds.KINDS)["replay"] = REPLAY
    sys.exit(main())
