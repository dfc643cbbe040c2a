"""Nodes that serve leases by aliquot's own service, with an engine for tests, as a distribution of its own."""

from __future__ import annotations

import sys
from pathlib import Path

ENGINE = '''
import os, threading

class Memory:
    """Keeps bytes, within its part. Frames are words."""

    kept = {}

    def __init__(self, part, answer):
        self.part, self.answer, self.mine = part, answer, {}

    def handle(self, frame):
        word, _, rest = frame.partition(b" ")
        if word == b"put":
            name, _, content = rest.partition(b" ")
            if sum(map(len, self.mine.values())) + len(content) > self.part.memory_bytes:
                self.answer(b"out of memory")
            else:
                self.mine[name] = content
        elif word == b"get":
            self.answer(self.mine.get(rest, b"nothing"))
        elif word == b"who":
            self.answer(f"{os.getpid()} {self.part.ordinal} {self.part.device_uuid}".encode())
        elif word == b"echo":
            self.answer(rest)
        elif word == b"die":
            os._exit(3)

    def close(self):
        self.mine.clear()

    def figures(self):
        return {"ops": 7, "waits": 1, "memory_bytes": sum(map(len, self.mine.values()))}
'''


def install(folder: Path) -> Path:
    """Where the distribution is, for PYTHONPATH of an agent. Its entry of `remote` goes before aliquot's own."""
    site = folder / "site"
    about = site / "memory_engine-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: memory-engine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[aliquot.hosts]\nremote = aliquot.remote.server.service:Service\n"
        "[aliquot.remote.engines]\nmemory = memory_engine:Memory\n"
    )
    (site / "memory_engine.py").write_text(ENGINE)
    return site


PROGRAM = [sys.executable, "-c"]
