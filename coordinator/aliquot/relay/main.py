"""The relay's program.

    aliquot-relay --listen 0.0.0.0:7072 --coordinator coord-a:7070,coord-b:7070 --processes 2

When agents can connect it prints one line, `ready {"address": …, "metrics": […], "processes": […]}`. It keeps nothing:
kill it, and agents connect again. SIGTERM and SIGINT send them elsewhere first.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from aliquot.common import logging as common_logging
from aliquot.common.clock import SystemClock
from aliquot.common.connection_string import decode
from aliquot.common.errors import AliquotError
from aliquot.common.notify import notify
from aliquot.coordinator.runtime import allow_many_connections, event_loop_factory, version
from aliquot.relay.config import Settings, parse_settings
from aliquot.relay.joining import join
from aliquot.relay.supervisor import Ready, Supervisor
from aliquot.relay.worker import Worker


async def _run_one(settings: Settings, number: int | None) -> None:
    """A relay of one process, or one process of several: then it ends with its supervisor."""
    worker = Worker(settings, number or 0, clock=SystemClock(), version=version())
    _on_signals(worker.stop)
    if number is not None:
        _when_orphaned(worker.stop)
    await worker.start()
    gc.collect()
    gc.freeze()
    if number is None:
        _say_ready(worker.address, [Ready(os.getpid(), worker.metrics_address)])
    else:
        _say({"metrics": worker.metrics_address})
    await worker.serve()


async def _run_several(settings: Settings, argv: list[str]) -> None:
    supervisor = Supervisor(settings, argv)
    _on_signals(supervisor.stop)
    ready = await supervisor.start()
    _say_ready(supervisor.address, ready)
    await supervisor.run()


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _when_orphaned(stop: Callable[[], None]) -> None:
    """The supervisor holds the other end of standard input, and says nothing there."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop()

    loop.add_reader(sys.stdin.fileno(), look)


def _say_ready(address: str, processes: Sequence[Ready]) -> None:
    _say(
        {
            "address": address,
            "metrics": [process.metrics for process in processes if process.metrics],
            "processes": [process.pid for process in processes],
        }
    )
    notify("READY=1", f"STATUS=relaying at {address}")


def _say(ready: dict[str, object]) -> None:
    sys.stdout.write(f"ready {json.dumps(ready)}\n")
    sys.stdout.flush()


def _join(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="aliquot-relay join", description="Lets this relay carry agents of a pool.")
    parser.add_argument("string", metavar="STRING", help="what `aliquot relay invite` printed; -: read from stdin")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, default=Settings().state_dir)
    given = parser.parse_args(words)
    text = sys.stdin.readline() if given.string == "-" else given.string
    joined = asyncio.run(join(given.state_dir, decode(text)))
    sys.stdout.write(f"this relay has joined the pool at {', '.join(joined.addresses)}: start aliquot-relay\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["join"]:
            return _join(words[1:])
        settings, number = parse_settings(argv, version())
        common_logging.configure(settings.log_level, json=settings.log_json)
        allow_many_connections()
        several = settings.processes > 1 and number is None
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            if several:
                runner.run(_run_several(settings, sys.argv[1:] if argv is None else argv))
            else:
                runner.run(_run_one(settings, number))
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    return 0
