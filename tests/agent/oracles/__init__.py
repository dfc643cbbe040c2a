"""What vendors' own readers, and people's, say of simulated cards: each in a process of its own, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def ask(module: str, environment: Mapping[str, str]) -> Any:
    """What `tests.agent.oracles.MODULE` prints when it is run with these variables beside the usual ones."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.agent.oracles.{module}"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
