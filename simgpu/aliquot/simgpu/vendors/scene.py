"""A simulated machine as a text file of lines, which the stand-ins read at every call. See `native/vendors/scene.h`."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aliquot.common.own_files import write_whole
from aliquot.simgpu.errors import NotBuiltError

_LIBRARIES = Path(__file__).resolve().parent.parent / "native" / "lib" / "vendors"
LINES_MAX = 512


def library(name: str) -> Path:
    """A stand-in, such as `libdcmi.so`. Raises NotBuiltError where it has not been built."""
    path = _LIBRARIES / name
    if not path.is_file():
        raise NotBuiltError(f"{path} is missing", hint="build with `make native`")
    return path


class Scene:
    """The file, for programs that change the machine. All of them may at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        """What is there now."""
        try:
            return self.path.read_text().splitlines()
        except FileNotFoundError:
            return []

    @contextmanager
    def changing(self) -> Iterator[list[str]]:
        """The lines, to be changed in place: written at the end, and by nobody else meanwhile."""
        with Path(f"{self.path}.lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = self.lines()
            yield lines
            if len(lines) > LINES_MAX:
                raise ValueError(f"{len(lines)} lines; a simulated machine has at most {LINES_MAX}")
            text = "".join(f"{line}\n" for line in lines)
            write_whole(self.path, text.encode(), mode=0o644, durable=False)
