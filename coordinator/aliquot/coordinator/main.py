"""The coordinator's program: arguments, signals, and the line that says that it answers.

    python -m aliquot.coordinator --listen 127.0.0.1:7070 --journal sqlite:PATH

When it answers it prints one line, `ready {"address": …, "metrics": …, "role": …}`; with a shared journal the role may
be `standby`: calls are answered with the leader's address then, until this one takes over. SIGTERM and SIGINT end it
without losing anything; so does a kill, which merely takes the replay of what the last snapshot does not hold.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial

from aliquot.common import logging as common_logging
from aliquot.common.errors import AliquotError
from aliquot.common.notify import beat, notify
from aliquot.common.reloading import read_again
from aliquot.common.runtime import VERSION, allow_many_connections, event_loop_factory, say_ready
from aliquot.coordinator.coordinator import Coordinator
from aliquot.coordinator.rpc.admin_socket import AdminSocket
from aliquot.coordinator.settings.arguments import parse_settings
from aliquot.coordinator.settings.config import LIVE, Settings
from aliquot.coordinator.settings.stores import make_journal
from aliquot.coordinator.settings.user_policies import discover, require
from aliquot.coordinator.writing.journal.base import Journal

_SWITCH_INTERVAL_S = 0.000_5
"""How long the event loop may keep the journal thread waiting for the interpreter, a few times per commit."""


async def run(settings: Settings, read: Callable[[], Settings], journal: Journal | None = None) -> None:
    """Serve until a signal comes; SIGHUP has the settings read again."""
    coordinator = Coordinator(settings, journal=journal)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, coordinator.stop)

    def hang_up() -> None:
        coordinator.adopt(read_again(coordinator.settings, read, LIVE, coordinator.metrics.duties))

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    await coordinator.start()
    socket = AdminSocket(coordinator.gate, lambda: coordinator.leading.services if coordinator.leading else ())
    await socket.start(settings.access_dir())
    say_ready(
        address=coordinator.address,
        metrics=coordinator.metrics_address,
        role=coordinator.role,
        access=str(settings.access_dir()),
    )
    notify("READY=1", f"STATUS={coordinator.role} at {coordinator.address}")
    beating = asyncio.create_task(beat())
    try:
        await coordinator.serve()
    finally:
        beating.cancel()
        await socket.stop()


def main(argv: list[str] | None = None, *, wrap: Callable[[Journal], Journal] = lambda journal: journal) -> int:
    """The program. `wrap` puts something between it and its journal."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if words[:1] == ["install-service"]:
            from aliquot.common.services import install_service  # noqa: PLC0415 - one that runs does not need it

            return install_service("aliquot-coordinator", words[1:])
        read = partial(parse_settings, argv, VERSION)
        settings = read()
        common_logging.configure(settings.log_level, json=settings.log_json)
        discover()
        require(settings.policy)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        allow_many_connections()
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(run(settings, read, wrap(make_journal(settings))))
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    return 0
