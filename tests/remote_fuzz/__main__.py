"""`python -m tests.remote_fuzz --frames N --json`: attack both engines; a line for each says what was found."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from aliquot import simgpu
from tests.remote_fuzz.fuzzing import Target, attack

ENGINES = ("torch", "cuda")


def main() -> int:
    """Exit code 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.remote_fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="for each engine")
    parser.add_argument("--engine", choices=ENGINES, help="one of them only")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", action="store_true", help="lines are JSON")
    arguments = parser.parse_args()
    code = 0
    for engine in (arguments.engine,) if arguments.engine else ENGINES:
        if engine == "torch" and find_spec("torch") is None:
            sys.stderr.write("PyTorch is not installed: its operators are left out\n")
            continue
        if engine == "cuda" and not os.environ.get("ALIQUOT_SIMGPU"):
            code |= _on_simulated_driver(arguments)
            continue
        started = time.monotonic()
        result = attack(engine, target(engine), arguments.frames, arguments.seed)
        document = {**result.document(), "took_s": round(time.monotonic() - started, 1)}
        line = json.dumps(document) if arguments.json else "  ".join(f"{key} {said}" for key, said in document.items())
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        code |= bool(result.findings)
    return code


def target(engine: str) -> Target:
    """What is attacked, in this process."""
    if engine == "torch":
        from tests.remote_fuzz.operators import Operators

        return Operators()
    from tests.remote_fuzz.driving import Driving

    return Driving()


def _on_simulated_driver(arguments: argparse.Namespace) -> int:
    """The same in a process that has it. Where the driver or the engine crashes, that is what was found."""
    with tempfile.TemporaryDirectory() as folder, simgpu.create(Path(folder) / "scenario", ("A100-40",)) as scenario:
        environment = {**os.environ, **simgpu.environment(scenario.path), "ALIQUOT_SIMGPU_BACKED": "1"}
        command = [sys.executable, "-m", "tests.remote_fuzz", "--engine", "cuda", "--frames", str(arguments.frames)]
        command += ["--seed", str(arguments.seed), *(["--json"] if arguments.json else [])]
        return abs(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
