"""Telling systemd how a service is doing: the part of sd_notify that is needed, without a dependency."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket


def notify(*lines: str) -> None:
    """Send state lines such as `READY=1`; outside of systemd nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.connect(address)
        sender.sendall("\n".join(lines).encode())


def watchdog_s() -> float | None:
    """How often systemd wants to hear from this process (half of its limit); None when it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 2e6 if text.isdecimal() and int(text) > 0 else None


async def beat() -> None:
    """Tell systemd that the event loop turns, until cancelled: one that is frozen is ended, and started again."""
    interval_s = watchdog_s()
    while interval_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
