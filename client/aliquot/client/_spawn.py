"""Starting a program inside a lease: it is attached before its first instruction.

A child that is attached after it started could allocate before the agent knows whose it is, and would lack the
variables that the agent sets. So a tiny interpreter starts first, in its own process group; it is attached by its pid,
gets the environment through a pipe, and becomes the program. Forking here would be shorter, but unsafe in a process
with grpc's threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# 125 when the environment never came; 126 and 127 as in shells: can't be executed, can't be found.
_BOOTSTRAP = """
import json, os, sys
fd = int(sys.argv[1])
parts = []
while part := os.read(fd, 65536):
    parts.append(part)
os.close(fd)
if not parts:
    os._exit(125)
program = sys.argv[2:]
try:
    os.execvpe(program[0], program, json.loads(b"".join(parts)))
except OSError as error:
    sys.stderr.write(f"{program[0]}: {error.strerror}\\n")
    os._exit(126 if isinstance(error, PermissionError) else 127)
"""


def spawn(
    command: Sequence[str],
    admit: Callable[[int], Mapping[str, str]],
    base: Mapping[str, str],
    **options: Any,  # noqa: ANN401 - subprocess.Popen's
) -> subprocess.Popen[Any]:
    """Start a program whose environment is `base` and what `admit(pid)` adds; `admit` attaches it.

    When `admit` raises, the child ends without having run the program, and the error goes on.
    """
    if not command:
        raise ValueError("an empty command")
    read_end, write_end = os.pipe()
    try:
        options.setdefault("process_group", 0)
        process: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603 - the command is the caller's
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(read_end), *command], pass_fds=(read_end,), **options
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    try:
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(json.dumps({**base, **admit(process.pid)}).encode())
    except BrokenPipeError:
        # It was ended meanwhile, as its exit code will show.
        return process
    except BaseException:
        process.wait()
        raise
    return process
