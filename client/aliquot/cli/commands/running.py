"""`run` and `exec`: programs inside leases, on this node."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from aliquot.cli import _following
from aliquot.cli import _options as options
from aliquot.cli import _secrets as secrets
from aliquot.cli import _views as views
from aliquot.cli import _words as words
from aliquot.cli._command import Work
from aliquot.cli._exits import Exit
from aliquot.cli._following import Following
from aliquot.cli._foreground import Foreground
from aliquot.cli._nodes import node_id_of
from aliquot.cli._out import Out
from aliquot.cli._parser import UsageError, seconds
from aliquot.cli.commands import _elsewhere as elsewhere
from aliquot.cli.commands import detaching
from aliquot.client import (
    AgentError,
    AgentUnreachable,
    HeldLease,
    LeaseLost,
    LeaseState,
    Pool,
    Refused,
    Request,
    Serve,
    fresh_key,
)
from aliquot.client._environment import handed_on
from aliquot.client.local import LocalAgent
from aliquot.common.errors import ConfigError
from aliquot.common.limits import DEFAULT_LEASE_TTL_S
from aliquot.common.stopping import STOP_VARIABLE

FIRST_LOOK_S = 1.0
"""How long a request may take before a note says that it waits."""


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.usage = "aliquot run --gpu GPU [options] -- PROGRAM [ARGUMENT …]"
    parser.epilog = (
        "Waits until the lease is active on this node (with --remote: on any), starts the program inside it, passes\n"
        "signals on, and releases the lease when the program ends. The exit code is the program's; 128 + N when\n"
        "signal N ended it."
    )
    parser.add_argument(
        "--remote",
        action="store_true",
        help="start the program here, whether there is a GPU or not, and let it use one elsewhere (docs/remote.md)",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="with --remote: say at the program's end where its time went, here and there, and what to change",
    )
    parser.add_argument(
        "--detach", "-d", action="store_true", help="go on without this terminal; `aliquot logs` has what it writes"
    )
    parser.add_argument("--gpu", "-g", default="", help="what is wanted: 0.25(A100),10Gi (needed)")
    parser.add_argument(
        "--wait", type=seconds, metavar="TIME", help="wait at most this long (default: as long as it takes)"
    )
    options.request(parser)
    _following.configure(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM")


def _run(pool: Pool, args: argparse.Namespace, out: Out) -> int:
    command = _program(args)
    if not args.gpu:
        behind = any(word == "-g" or word.startswith("--gpu") for word in command)
        raise UsageError(
            "--gpu is needed: what the program gets",
            hint="options of `aliquot run` stand before `--`: what is behind it is the program's"
            if behind
            else "aliquot run --gpu 0.25,8Gi -- PROGRAM",
        )
    if args.profile and not args.remote:
        raise ConfigError("--profile is for programs that use a GPU elsewhere", hint="give --remote too")
    if args.detach and detaching.VARIABLE not in os.environ:
        return detaching.start(out)
    follow = _following.following(args)
    if args.remote:
        args.serve = Serve.CUDA if args.serve is Serve.CUDA else Serve.REMOTE
        nodes = [node_id_of(pool, name) for name in args.node_ids]
        request = options.read_request(args.gpu, args, node_ids=nodes)
        told = {STOP_VARIABLE: args.stop_signal} if args.stop_signal else {}
        told |= {elsewhere.PROFILE_VARIABLE: "json" if out.as_json else "table"} if args.profile else {}
        launcher = elsewhere.telling(elsewhere.launcher(), told)
        code = _inside(out, pool, request, args.wait, command, {}, follow=follow, launcher=launcher)
        return code if code >= 0 else 128 - code
    agents = _agents_here(pool)
    wanted = {node_id_of(pool, name) for name in args.node_ids} if args.node_ids else set(agents)
    here = sorted(wanted & set(agents))
    if not here:
        raise Refused(
            f"{', '.join(args.node_ids)} is another machine, and programs can only be started on this one so far",
            hint="start `aliquot run` there",
            reason="REMOTE_EXECUTION",
        )
    request = options.read_request(args.gpu, args, node_ids=here)
    code = _inside(out, pool, request, args.wait, command, agents, follow=follow)
    return code if code >= 0 else 128 - code


def _inside(
    out: Out,
    pool: Pool,
    request: Request,
    wait_s: float | None,
    command: list[str],
    agents: Mapping[str, LocalAgent],
    *,
    follow: Following,
    launcher: elsewhere.Launcher | None = None,
) -> int:
    """Run the program in its own lease, again after a move. Returns its last exit code, however the lease ends."""
    foreground = Foreground()
    code: int | None = None
    with foreground.taking_signals():
        try:
            with _lease(out, pool, request, wait_s) as lease:
                secrets.keep(lease.lease_id, lease.info.secret)
                try:
                    while True:
                        out.note(_granted(lease))
                        place = follow.place_of(lease)
                        code = lease.exit_code = _start(out, lease, command, foreground, launcher)
                        foreground.pid = 0  # what comes now is for this process
                        if foreground.forwarded or not follow.moved_from(lease, place, code, out.note):
                            break
                        out.note("moved: the program is started again")
                    asked_for = code >= 0 or -code in foreground.forwarded or -code == signal.SIGINT
                    if not asked_for:
                        _say_what_ended_it(out, lease, code, agents)
                finally:
                    secrets.forget(lease.lease_id)
        except LeaseLost as lost:
            if code is None:
                raise
            if launcher is None or code != Exit.LEASE_LOST:  # else the program has said so itself
                _stopped(out, "", lost.message)
    return code


def _program(args: argparse.Namespace) -> list[str]:
    command: list[str] = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not command:
        raise ConfigError("no program to start", hint="write it after --, as in: aliquot run --gpu 0.25 -- python x.py")
    return command


def _agents_here(pool: Pool) -> Mapping[str, LocalAgent]:
    """This machine's agents by node. Raises `AgentUnreachable` when there is none."""
    found: dict[str, LocalAgent] = {}
    problems: list[str] = []
    for agent in pool.agents:
        try:
            found[agent.info().node_id] = agent
        except AgentError as error:
            problems.append(error.message)
    if not found:
        why = f" ({'; '.join(problems)})" if problems else ""
        raise AgentUnreachable(
            f"this machine has no agent, so it can't run programs in leases{why}",
            hint="start an agent here, or a simulated pool with `aliquot up`; to run on another machine, call "
            "`aliquot run` there",
        )
    return found


def _lease(out: Out, pool: Pool, request: Request, wait_s: float | None) -> HeldLease:
    key = fresh_key()
    first = pool.allocate(request, key=key, wait_s=FIRST_LOOK_S if wait_s is None else min(FIRST_LOOK_S, wait_s))
    try:
        if detaching.VARIABLE in os.environ:
            detaching.begin(first.lease_id, out)
        if first.state is LeaseState.QUEUED and not out.as_json:
            out.note(Text.assemble(("waiting", "yellow"), f" for {first.gpu} as {first.lease_id}; Ctrl-C withdraws it"))
            for thing in views.explanation_view(first.waiting) if first.waiting else ():
                out.err.print(thing, highlight=False)
        return pool.lease(request, key=key, wait_s=None if wait_s is None else max(0.0, wait_s - FIRST_LOOK_S))
    except (KeyboardInterrupt, OSError):  # the second: there is no place for its log
        pool.release(first.lease_id, reason="withdrawn by its launcher")
        raise


def _granted(lease: HeldLease) -> Text:
    parts = ", ".join(
        f"{words.share(part.share_milli)} of {words.model(part.device_model, part.mig_profile)} "
        f"with {words.amount(part.memory_bytes)} ({words.tier(part.tier)})"
        for part in lease.slices
    )
    return Text.assemble((lease.lease_id, "bold"), f"  {parts} on {words.where(lease.slices)}")


def _start(
    out: Out, lease: HeldLease, command: list[str], foreground: Foreground, launcher: elsewhere.Launcher | None
) -> int:
    ttl_s = lease.info.ttl_s or DEFAULT_LEASE_TTL_S

    def stopping() -> None:
        out.note(f"stopped: the lease ends with the program unless they go on within {ttl_s} s")

    if launcher is None:
        return foreground.wait(lease.popen(command, admitted=foreground.started), stopping)
    with launcher(lease) as variables:
        return foreground.wait(elsewhere.start(command, variables, foreground.started), stopping)


def _say_what_ended_it(out: Out, lease: HeldLease, code: int, agents: Mapping[str, LocalAgent]) -> None:
    """Say why a signal ended the program that neither this process nor the user sent."""
    for agent in agents.values():
        for act in agent.status().acts:
            if act.lease_id == lease.lease_id and act.act in {"terminate", "kill", "kill_all", "end_lease"}:
                _stopped(out, " by the watchdog", act.why)
                out.note("hint: ask for more memory, or use less of it")
                return
    if lease.refresh().state not in {LeaseState.ACTIVE, LeaseState.UNREACHABLE}:
        # The lease is ending; the end of the block says why.
        return
    out.note(f"the program was ended by {signal.Signals(-code).name}")


def _stopped(out: Out, by: str, why: str) -> None:
    out.note(Text.assemble((f"stopped{by}: ", "bold red"), why))


def _configure_exec(parser: argparse.ArgumentParser) -> None:
    parser.usage = "aliquot exec --lease LEASE [options] -- PROGRAM [ARGUMENT …]"
    parser.epilog = (
        "Needs the lease's secret, which `alloc` and `run` keep for their user; ALIQUOT_LEASE_SECRET is used instead.\n"
        "The lease stays when the program ends."
    )
    parser.add_argument("--lease", "-l", required=True, metavar="LEASE", help="a lease with a part on this node")
    parser.add_argument(
        "--print-docker",
        action="store_true",
        help="start nothing, print the flags of `docker run` for a container in it",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM")


def _exec(args: argparse.Namespace, out: Out) -> int:
    del out  # the program's own
    command = [] if args.print_docker else _program(args)
    secret = secrets.find(args.lease)
    with options.open_pool(args) as pool:
        lease = pool.get(args.lease)
        agents = _agents_here(pool)
        here = [part for part in lease.slices if part.node_id in agents]
        if not here:
            raise Refused(
                f"lease {lease.lease_id} is on {words.where(lease.slices)}, and programs can only be started on this "
                "machine so far",
                hint="run `aliquot exec` there",
                reason="REMOTE_EXECUTION",
            )
        agent = agents[here[0].node_id]
    attachment = agent.attach(lease.lease_id, secret, member=here[0].member)
    if args.print_docker:
        uuids = [part.device_uuid for part in here if part.member == here[0].member]
        sys.stdout.write(shlex.join(_docker_flags(uuids, attachment.environment)) + "\n")
        return 0
    # This process is attached; it becomes the program, with the same pid and terminal.
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**handed_on(os.environ), **attachment.environment})  # noqa: S606 - what was asked for
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 126 if isinstance(error, PermissionError) else 127


def _docker_flags(uuids: list[str], environment: Mapping[str, str]) -> list[str]:
    """What makes a container part of the lease that this process is attached to: below the lease's cgroup it shares
    the limit there, and the toolkit reads its variables before it makes the container.
    """
    flags = ["--gpus", f'"device={",".join(uuids)}"']
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").partition("0::")[2].partition("\n")[0]
    if environment["ALIQUOT_LEASE_ID"] in own.split("/"):
        flags += ["--cgroup-parent", own]
    if library := environment.get("LD_PRELOAD"):
        flags += ["--volume", f"{Path(library).parent}:{Path(library).parent}"]
    inside = (f"{name}={value}" for name, value in environment.items() if name != "LD_LIBRARY_PATH")
    return flags + [word for pair in inside for word in ("--env", pair)]


RUN = Work(_configure_run, options.on_pool(_run))
EXEC = Work(_configure_exec, _exec)
