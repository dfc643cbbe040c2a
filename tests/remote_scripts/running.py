"""Runs programs one after another in this process, as if each were its own, and says what each printed.

So that PyTorch is loaded once for all of them: `python running.py FOLDER OUTPUT NAME…`.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import tempfile
import traceback
from pathlib import Path


def run(program: Path) -> str:
    """What it printed; in place of that its traceback, where it failed."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        sys.argv = [str(program), f"{folder}/checkpoint.pt"]
        try:
            runpy.run_path(str(program), run_name="__main__")
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            return traceback.format_exc()
    return printed.getvalue()


def main() -> None:
    """See the module's docstring."""
    folder, output, *names = sys.argv[1:]
    import torch

    torch.set_num_threads(1)
    Path(output).write_text(json.dumps({name: run(Path(folder) / f"{name}.py") for name in names}))


if __name__ == "__main__":
    main()
