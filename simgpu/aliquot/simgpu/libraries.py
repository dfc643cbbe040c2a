"""Where the simulated libraries are, and the environment in which a program finds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from aliquot.simgpu.errors import NotBuiltError

SCENARIO_VARIABLE = "ALIQUOT_SIMGPU"
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")

_NATIVE = Path(__file__).resolve().parent / "native"


def library_directory() -> Path:
    """The folder with the simulated libraries. Raises NotBuiltError where they have not been built."""
    directory = _NATIVE / "lib"
    missing = [name for name in LIBRARIES if not (directory / name).is_file()]
    if missing:
        raise NotBuiltError(
            f"{directory} has no {' and no '.join(missing)}", hint=f"build with `make native` or `make -C {_NATIVE}`"
        )
    return directory


def environment(path: str | os.PathLike[str], base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that make a child process use the scenario's GPUs: merge them into its environment.

    `base` (default: this process's environment) is where an existing LD_LIBRARY_PATH comes from; the simulated
    libraries are found before whatever it names.
    """
    directory = str(library_directory())
    before = (os.environ if base is None else base).get("LD_LIBRARY_PATH", "")
    rest = [part for part in before.split(":") if part and part != directory]
    return {"LD_LIBRARY_PATH": ":".join([directory, *rest]), SCENARIO_VARIABLE: str(Path(path).absolute())}
