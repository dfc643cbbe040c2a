"""Queue policies against one another on a real list of jobs; `_queueing.py` is the benchmark itself.

    python bench/queue.py --trace "$ALIQUOT_TRACES/philly-derived" --json

Scripts run from this folder look here first for what they import, so this file also answers to `import queue`: it then
becomes the standard library's module of that name.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path


def become_the_standard_library() -> None:
    """Load the real `queue` in the place of this module."""
    spec = importlib.util.spec_from_file_location("queue", Path(sysconfig.get_path("stdlib")) / "queue.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["queue"] = module
    spec.loader.exec_module(module)


if __name__ == "queue":
    become_the_standard_library()
elif __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from bench._queueing import main

    main()
