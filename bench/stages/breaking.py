"""What is said to break MPS: a limit that names a card out of sight, and SIGKILL of a client with work in flight."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from bench.lib.hardware_lease import Bench
from bench.lib.hardware_slowdown import MpsDaemon, Unavailable, mps_daemon
from bench.stages.means import GIB, Card, NotRun, Talking, run_command, run_program
from bench.stages.programs import BUSY, STEADY

LIMIT_BYTES, WANTED_BYTES = 2 * GIB, 4 * GIB
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
NEIGHBOUR_STEPS = "200"
_NEW_CLIENT_S = 60.0


def mps(card: Card) -> dict[str, Any]:
    """Each attempt has a daemon of its own, since one may wedge it."""
    bench = card.bench()
    found: dict[str, Any] = {}
    try:
        with mps_daemon(bench) as daemon:
            daemon.say(f"set_default_device_pinned_mem_limit 0 {LIMIT_BYTES >> 20}M")
            attempts = {
                "the daemon's limit": {},
                "its own limit": {LIMIT: "0=2G"},
                "a card out of sight named, too": {LIMIT: "0=2G,1=4G"},
                "a limit above the daemon's": {LIMIT: "0=8G"},
            }
            for name, variables in attempts.items():
                found[name] = _probe(daemon, variables)
                card.partly(found)
    except Unavailable as error:
        raise NotRun(str(error)) from error
    for name, politely in (("SIGKILL", False), ("terminate_client, then SIGKILL", True)):
        try:
            card.require_torch()
            found[name] = _kill(card, bench, politely=politely)
        except NotRun as reason:
            found[name] = {"not run": str(reason)}
        card.partly(found)
    return found


def _probe(daemon: MpsDaemon, variables: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", str(WANTED_BYTES)]
    answer = run_command(command, {**daemon.client, **variables}, 60.0)
    return answer | {"over": answer.get("held_bytes", 0) > LIMIT_BYTES}


def _kill(card: Card, bench: Bench, *, politely: bool) -> dict[str, Any]:
    """One client is killed in the middle of its work: what its neighbour and a new client see of it."""
    with mps_daemon(bench) as daemon:
        client = daemon.client | card.device
        with Talking(BUSY, client) as victim, Talking(STEADY, client | {"STEPS": NEIGHBOUR_STEPS}) as beside:
            ready = [victim.next(), beside.next()]
            if any("failed" in each for each in ready):
                return {"failed": "the clients did not start", "said": ready}
            found: dict[str, Any] = {}
            if politely:
                server = _asked(daemon, "get_server_list").split()
                found["terminate_client"] = _asked(
                    daemon, f"terminate_client {' '.join(server[-1:])} {victim.process.pid}"
                )
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            found["neighbour"] = beside.next()
            found["new client"] = run_program(STEADY, client | {"STEPS": "5"}, _NEW_CLIENT_S)
            found["servers"] = _asked(daemon, "get_server_list")
        return found | {"unharmed": "failed" not in found["neighbour"] and "failed" not in found["new client"]}


def _asked(daemon: MpsDaemon, text: str) -> str:
    try:
        return daemon.say(text)
    except subprocess.TimeoutExpired:
        return "no answer within 20 s"
