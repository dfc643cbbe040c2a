"""`up`, `down` and `demo`: a pool on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from rich.text import Text

from aliquot.cli._browser import link_to
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table
from aliquot.cli.localpool import Layout, LocalPool, PoolRecord, PoolSetup, require_pool
from aliquot.cli.localpool.children import ChildFailed, clean_environment
from aliquot.cli.localpool.pool import AGENT_METRICS_PORT, CONSOLE_PORT, START_TIMEOUT_S, free_port
from aliquot.cli.localpool.record import fields_of
from aliquot.cli.localpool.signing_in import SigningIn
from aliquot.client import AgentError, NotFound, Pool
from aliquot.client.credentials import CredentialsFile, read_token_file, same_place
from aliquot.client.local import LocalAgent
from aliquot.common.errors import AliquotError

TEND_EVERY_S = 0.5
LISTEN = "127.0.0.1:7070"
_TOLD = 8
"""Leases whose programs run on that are named to people; JSON has all."""


class NoGpus(AliquotError):
    """This machine has no GPU for a pool of real ones."""


def _configure_up(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "State (journal, reservations, logs) stays in --state-dir; the next `up` finds the earlier leases.\n"
        "A process that ends by itself is started again. Ctrl-C or `aliquot down` stops the pool; programs in leases\n"
        "run on, as they do without an agent: `aliquot release` ends them before."
    )
    parser.add_argument("--nodes", type=_count, default=2, metavar="N", help="simulated nodes (2)")
    parser.add_argument("--gpus", type=_count, default=4, metavar="N", help="GPUs of each (4)")
    parser.add_argument(
        "--model",
        default="A100-40",
        help="their model (A100-40); `python -m aliquot.simgpu create --help` lists all",
    )
    parser.add_argument("--real", action="store_true", help="this machine's own GPUs, as one node")
    parser.add_argument(
        "--tiers",
        default="",
        metavar="TIERS",
        help="how to enforce limits: preload,watchdog (default: all that work)",
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", help=f"the coordinator's address ({LISTEN}, or a free port beside another pool)"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=7071, metavar="PORT", help="the coordinator's (7071); 0: free ports for all"
    )
    parser.add_argument(
        "--console-port", type=int, default=CONSOLE_PORT, metavar="PORT", help=f"the page and REST ({CONSOLE_PORT})"
    )
    parser.add_argument("--no-console", action="store_true", help="without the page and REST")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="default ~/.local/state/aliquot/pool")
    parser.add_argument("--detach", action="store_true", help="leave it running in the background")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number from 1 to 64")
    return int(text)


def _up(args: argparse.Namespace, out: Out) -> None:
    require_pool()
    layout = Layout.of(args.state_dir)
    if args.real:
        _ask_doctor(out)
    if args.detach:
        _detach(out, layout, args)
        return
    plan = PoolSetup(
        nodes=args.nodes,
        gpus=args.gpus,
        model=args.model,
        real=args.real,
        listen=args.listen or _free_address(out),
        metrics_port=args.metrics_port,
        agent_metrics_port=AGENT_METRICS_PORT if args.metrics_port else 0,
        tiers=(args.tiers,) if args.tiers else (),
        console_port=None if args.no_console else args.console_port if args.metrics_port else 0,
    )
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    with LocalPool(layout, plan, out.note, CredentialsFile.of(os.environ)) as pool:
        out.note(f"starting a coordinator and {len(plan.node_names())} agents")
        pool.start()
        record = PoolRecord.read(layout)
        assert record is not None
        _announce(out, record, last="Ctrl-C stops the pool; the state is kept.")
        while not stopping.wait(TEND_EVERY_S):
            pool.tend()
        out.note("stopping")


def _ask_doctor(out: Out) -> None:
    """What this machine's doctor says of it, in words. Raises NoGpus where it has nothing that could be leased."""
    command = [sys.executable, "-m", "aliquot.cli", "doctor", "--no-prove", "--json"]
    asked = subprocess.run(command, capture_output=True, text=True, env=clean_environment({}), check=False)  # noqa: S603 - ourselves
    try:
        found = json.loads(asked.stdout)
    except ValueError:
        raise NoGpus("the doctor could not look at this machine", hint=asked.stderr.strip()[-500:]) from None
    wrong = [each for each in found if each["mark"] == "problem"]
    for each in wrong:
        out.note(f"doctor: {each['subject']}: {each['text']}")
    gpus = sum(each["subject"].startswith("GPU ") and each["mark"] != "problem" for each in found)
    if not gpus:
        said = wrong[0]["text"].partition("\n")[0] if wrong else "its driver shows none"
        raise NoGpus(
            f"this machine has no GPU that could be leased: {said}",
            hint="`aliquot doctor` says all that it looked at; without --real the GPUs are simulated",
        )
    out.note(f"doctor: {gpus} GPUs can be leased" + (", but see above" if wrong else ""))


def _free_address(out: Out) -> str:
    """The usual address or, where something listens there already, a port that the system chooses."""
    host, _, port = LISTEN.rpartition(":")
    found = free_port(int(port))
    if not found:
        out.note(f"something listens at {LISTEN}: this pool gets a port of its own")
    return f"{host}:{found}"


def _detach(out: Out, layout: Layout, args: argparse.Namespace) -> None:
    layout.make()
    log = layout.logs / "up.log"
    said = {name: getattr(args, name) for name in ("nodes", "gpus", "model", "metrics_port", "console_port", "tiers")}
    said |= {"listen": args.listen or _free_address(out), "state_dir": layout.root}
    command = [sys.executable, "-m", "aliquot.cli", "up", "--json"]
    command += [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command += [f"--{name.replace('_', '-')}" for name in ("real", "no_console") if getattr(args, name)]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=clean_environment({}),
            start_new_session=True,
        )
    out.note(f"starting a pool in the background; its logs are in {layout.logs}")
    try:
        record = _await_record(layout, process, log)
    except BaseException:
        # Also when the wait is interrupted: half a pool is of no use.
        process.terminate()
        raise
    _announce(out, record, last="`aliquot down` stops it; the state is kept.")


def _await_record(layout: Layout, process: subprocess.Popen[bytes], log: Path) -> PoolRecord:
    deadline = time.monotonic() + 2 * START_TIMEOUT_S
    while time.monotonic() < deadline:
        record = PoolRecord.read(layout)
        if record is not None and record.supervisor.pid == process.pid and record.supervisor.alive:
            return record
        if process.poll() is not None:
            raise _why_not(log.read_text(errors="replace").strip(), layout)
        time.sleep(0.05)
    raise ChildFailed("the pool did not start in time", hint=f"its logs are in {layout.logs}")


def _why_not(words: str, layout: Layout) -> ChildFailed:
    """The error of the pool in the background, which it wrote as JSON."""
    logs = f"its logs are in {layout.logs}"
    try:
        error = json.loads(words.splitlines()[-1])["error"]
        message, hint = str(error["message"]), str(error.get("hint") or logs)
    except (ValueError, LookupError, TypeError):
        message, hint = words, logs
    return ChildFailed(f"the pool did not start: {message}", hint=hint)


def _announce(out: Out, record: PoolRecord, last: str) -> None:
    if out.as_json:
        out.document(fields_of(record))
        return
    with Pool() as meant:
        default = same_place(meant.addresses[0], record.coordinator)
    rows = [("coordinator", record.coordinator, record.metrics)]
    rows += [("console", record.console, "")] if record.console else []
    rows += [(node.name, node.devices, node.metrics) for node in record.nodes]
    out.show(Text("The pool is up.", "bold green"), table("PART", "WHAT", "METRICS", rows=rows))
    out.show(Text(f"state and logs: {record.state_dir}", "bright_black"))
    if not default:
        out.show(f"export ALIQUOT_COORDINATOR={record.coordinator}")
    if Layout.of(None).root != Path(record.state_dir):
        out.show(f"export ALIQUOT_AGENT_SOCKET={':'.join(node.socket for node in record.nodes)}")
    out.show(
        "try:  aliquot run --gpu 0.25,8Gi -- python -m aliquot.simgpu.burn --bytes 4Gi --seconds 30",
        "      aliquot top",
    )
    if record.console:
        # In one piece, however narrow the terminal is: half a link lets nobody in.
        out.word(f"look:  {_link(record)}")
        out.show(Text("       once, within ten minutes; `aliquot console` makes another"))
    out.show(last)


def _link(record: PoolRecord) -> str:
    """The page's address, by which its owner needs no token."""
    file = Layout(Path(record.state_dir)).admin_token
    try:
        return link_to(record.console, read_token_file(file))
    except AliquotError:  # the pool is up all the same
        return record.console


def _configure_down(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="default ~/.local/state/aliquot/pool")


def _down(args: argparse.Namespace, out: Out) -> None:
    layout = Layout.of(args.state_dir)
    record = PoolRecord.read(layout)
    if record is None or not record.processes:
        raise NotFound(f"no pool is running in {layout.root}", hint="`aliquot up` starts one", reason="NO_POOL")
    processes = record.processes
    leases = _held(record)
    if not record.stop(timeout_s=20.0):
        raise ChildFailed("some processes did not end", hint=f"look at {layout.logs}")
    layout.record.unlink(missing_ok=True)
    # A supervisor that was killed has left it.
    SigningIn(layout, CredentialsFile.of(os.environ), record.coordinator).sign_out()
    stopped = [{"name": process.name, "pid": process.pid} for process in processes]
    out.document({"stopped": stopped, "leases_held": leases})
    out.show(f"stopped {len(processes)} processes; the state stays in {layout.root}")
    if leases:
        more = f" and {len(leases) - _TOLD} more" if len(leases) > _TOLD else ""
        out.show(f"programs of {', '.join(leases[:_TOLD])}{more} run on, and the next `aliquot up` finds these leases")


def _held(record: PoolRecord) -> list[str]:
    """The leases that the pool's agents hold, as far as they still answer."""
    found: set[str] = set()
    for node in record.nodes:
        with contextlib.suppress(AgentError):
            found |= {part.lease_id for part in LocalAgent(Path(node.socket)).status().slices}
    return sorted(found)


UP = Work(_configure_up, _up)
DOWN = Work(_configure_down, _down)
