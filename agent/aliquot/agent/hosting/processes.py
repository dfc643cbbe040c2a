"""A process for each member of a lease that is served: started in the lease's containment, environment and tier,
exactly as one that attaches itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from aliquot.agent.attaching import Attacher
from aliquot.agent.core.model import Holder, ProcessKey, Reservation
from aliquot.agent.hosting.ahead import Ahead, expected
from aliquot.agent.hosting.asking import ask
from aliquot.agent.hosting.base import Answer, HostError
from aliquot.agent.hosting.clients import NONE, Reached, chosen, of_lease
from aliquot.agent.hosting.folders import TEMPORARY, Folders
from aliquot.agent.processes.apart import apart
from aliquot.agent.processes.signals import Signaller, Target
from aliquot.agent.settings import HostingSettings
from aliquot.agent.state import NodeState
from aliquot.common.errors import AliquotError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A service may have a framework to import and a device to initialise."""
GRACE_MAX_S = 10.0
"""Between SIGTERM and SIGKILL for one that does not answer any more; its lease's own grace may be shorter."""
KILL_S = 5.0
"""How long after SIGKILL one counts as hung in the kernel."""
TRY_TIMEOUT_S = 30.0
_TRIED = "import aliquot.agent.hosting.program"
_LOOK_AGAIN_S = 0.05
_LOOK_AGAIN_MAX_S = 0.5
_HANDED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG")
"""What a process gets of the agent's own environment."""
# It waits until it belongs to the lease; only then is anything loaded that the tenant's tier has to hold.
_WHEN_TOLD = 'read go && exec "$@"'
_OWN_OOM_SCORE = Path("/proc/self/oom_score_adj")


class ProcessHost:
    """See `base.Host`. Use from one event loop.

    `coordinators`: the addresses to which the way is looked up by which clients reach it, where nothing is set.
    `preloads`: that processes are likely to load the preload library.
    """

    def __init__(
        self,
        *,
        state: NodeState,
        attacher: Attacher,
        signaller: Signaller,
        directory: Path,
        settings: HostingSettings,
        coordinators: Callable[[], Sequence[str]] = tuple,
        preloads: bool = False,
    ) -> None:
        self._state, self._attacher, self._signaller = state, attacher, signaller
        self._containment, self._processes = attacher.containment, attacher.processes
        uids = settings.users
        self._folders = Folders(directory, uids or (os.geteuid(),))
        self._uid = next(iter(uids), os.geteuid())
        self._children: dict[Holder, subprocess.Popen[bytes]] = {}
        """Those that this agent has started; of others it knows what is written down."""
        self._locks: WeakValueDictionary[Holder, asyncio.Lock] = WeakValueDictionary()
        self._settings = settings
        self._installed: frozenset[str] = frozenset()
        self._reached = Reached(settings.advertise, settings.ports, coordinators)
        self._figures: dict[Holder, Mapping[str, int]] = {}
        loaded = expected(os.environ, preloads=preloads)
        self._ahead = Ahead(self._folders, (), _start_ahead, loaded)

    def offered(self) -> frozenset[str]:
        """See `Host`."""
        return self._installed

    async def start(self, holder: Holder, name: str) -> str:
        """See `Host`."""
        if name not in self._installed:
            raise HostError(f"no service named {name} is installed on this node", hint=f"install what provides {name}")
        async with self._lock(holder):
            try:
                if await self._found(holder) is None:
                    if not self._usable(holder):
                        raise HostError("the coordinator does not name its slices: they take no new processes")
                    await self._end(holder, f"what served its lease by {name} does not answer any more")
                    await self._spawn(holder, name)
                async with asyncio.timeout(START_TIMEOUT_S):
                    return await self._until_it_answers(holder, name)
            except TimeoutError:
                problem = f"{name} has not answered within {START_TIMEOUT_S:g} s"
            except HostError as error:
                problem = error.message
            except (OSError, AliquotError) as error:
                problem = f"{name} can't be started: {error}"
            if self._usable(holder):
                await self._end(holder, problem)
            raise HostError(problem)

    async def health(self, holder: Holder) -> str:
        """See `Host`."""
        child = self._children.get(holder)
        if child is not None and child.poll() is not None:
            return f"its process has ended {_ending(child.returncode)}"
        answer = await self._ask(holder)
        if answer is None:
            return "its process does not answer"
        self._keep(holder, answer)
        return answer.problem or ("" if answer.endpoint else "its process is starting")

    async def measure(self, holder: Holder) -> Mapping[str, int] | None:
        """See `Host`."""
        answer = await self._ask(holder)
        if answer is None or not answer.endpoint:
            return None
        self._keep(holder, answer)
        return answer.figures

    def _keep(self, holder: Holder, answer: Answer) -> None:
        if self._state.held(holder):
            self._figures[holder] = answer.figures

    async def stop(self, holder: Holder) -> None:
        """See `Host`."""
        async with self._lock(holder):
            if self._state.held(holder):
                return  # it came back meanwhile
            self._figures.pop(holder, None)
            child = self._children.pop(holder, None)
            if child is not None:
                await _reap(child)
            await asyncio.to_thread(self._folders.remove, holder)

    async def sweep(self) -> None:
        """See `Host`."""
        await asyncio.to_thread(self._folders.sweep, self._state.holders())
        problem, installed = await asyncio.gather(self._tried(), self._found_installed())
        if problem and installed:
            log.error("no lease can be served here: %s", problem)
            self._state.note("serving", f"no lease can be served here: {problem}")
            return
        self._installed = installed
        if self._settings.ahead:
            self._ahead.services = installed
            self._ahead.begin()

    async def _found_installed(self) -> frozenset[str]:
        if NONE in self._settings.services:
            return frozenset()
        try:
            found = await apart("aliquot.agent.hosting.installed:installed")
        except OSError as error:
            log.error("no lease can be served here: what is installed can't be found: %s", error)  # noqa: TRY400
            return frozenset()
        return chosen(self._settings.services, found)

    async def _tried(self) -> str:
        if NONE in self._settings.services or self._uid == os.geteuid():
            return ""
        return await asyncio.to_thread(_try_as, self._uid)

    def figures(self) -> Mapping[Holder, Mapping[str, int]]:
        """See `Host`."""
        return self._figures

    def _lock(self, holder: Holder) -> asyncio.Lock:
        """One for each member as long as somebody holds it or waits for it."""
        lock = self._locks.get(holder)
        if lock is None:
            lock = self._locks[holder] = asyncio.Lock()
        return lock

    def _usable(self, holder: Holder) -> list[Reservation]:
        """The member's slices that may take processes."""
        return [record for record in self._state.running(holder) if not record.quarantined]

    # -- starting

    async def _spawn(self, holder: Holder, name: str) -> None:
        records = self._usable(holder)
        if not records:
            raise HostError("its lease is being ended")
        told = await asyncio.to_thread(self._reached.environment) | of_lease(records[0].spec)
        begun = await self._waiting(holder, name, records, told) or await self._begun(holder, name, records, told)
        child = self._children[holder] = begun.child
        assert child.stdin is not None
        try:
            key = self._processes.key_of(child.pid)
            if key is None:
                raise HostError("its process has ended before it began")
            self._attacher.attach(key, holder, begun.uid, hosted=True)
            child.stdin.write(begun.word)
        except BaseException:
            child.kill()  # ours, not yet the lease's, and not reaped: the pid is still its own
            raise
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()
        self._ahead.used(name, begun.variables)
        log.info("serving", extra={"lease_id": holder.lease_id, "pid": child.pid, "service": name})

    async def _begun(
        self, holder: Holder, name: str, records: Sequence[Reservation], told: Mapping[str, str]
    ) -> _Begun:
        """A process that will be the service once it is told."""
        try:
            folder, uid = await asyncio.to_thread(self._folders.make, holder)
        except HostError:
            await asyncio.to_thread(self._ahead.give_up)  # a lease goes before those that may come
            folder, uid = await asyncio.to_thread(self._folders.make, holder)
        variables = self._variables(records, folder, uid, told)
        command = ["/bin/sh", "-c", _WHEN_TOLD, "sh", *_command(uid, variables, name)]
        return _Begun(await asyncio.to_thread(_start, command, folder), uid, variables, b"go\n")

    async def _waiting(
        self, holder: Holder, name: str, records: Sequence[Reservation], told: Mapping[str, str]
    ) -> _Begun | None:
        """The process that was started ahead, where the lease can have it."""
        waiting = self._ahead.take(name, holder)
        if waiting is None:
            return None
        variables = self._variables(records, self._folders.of(holder), waiting.uid, told)
        if not waiting.fits(variables):
            await asyncio.to_thread(self._ahead.drop, waiting)
            return None
        await asyncio.to_thread(self._folders.adopt, waiting.folder, holder)
        return _Begun(waiting.child, waiting.uid, variables, waiting.word(self._folders.of(holder), variables))

    def _variables(
        self, records: Sequence[Reservation], folder: Path, uid: int, told: Mapping[str, str]
    ) -> dict[str, str]:
        present = {**_present(folder), **told}
        variables, _ = self._attacher.environment(records, present, uid)
        return present | variables

    async def _until_it_answers(self, holder: Holder, name: str) -> str:
        while True:
            answer = await self._ask(holder)
            if answer is not None and answer.problem:
                raise HostError(f"{name}: {answer.problem}")
            if answer is not None and answer.endpoint:
                return answer.endpoint
            if not self._state.running(holder):
                raise HostError("its lease is being ended")
            child = self._children.get(holder)
            if child is not None and child.poll() is not None:
                raise HostError(f"{name} has ended {_ending(child.returncode)} before it answered")
            if child is None and not self._containment.service_of(holder):
                raise HostError(f"{name} has ended before it answered")
            await asyncio.sleep(_LOOK_AGAIN_S)

    # -- ending

    async def _end(self, holder: Holder, why: str) -> None:
        """Leave nothing of what was started, by whichever agent: SIGTERM, the grace, SIGKILL. What has attached itself
        goes on. Raises `HostError` where something outlives that: nothing is started beside it.
        """
        grace_s = min([GRACE_MAX_S, *(each.spec.grace_ms / 1000 for each in self._state.running(holder))])
        for what, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
            if await self._gone(holder, why, what, wait_s):
                break
        else:
            pids = ", ".join(str(each.pid) for each in self._containment.service_of(holder))
            raise HostError(f"what served it is still alive after SIGKILL, probably hung in the kernel: {pids}")
        child = self._children.pop(holder, None)
        if child is not None:
            await _reap(child)
        self._attacher.forget_hosted(holder)

    async def _gone(self, holder: Holder, why: str, what: signal.Signals, wait_s: float) -> bool:
        until_s, look_s = time.monotonic() + wait_s, _LOOK_AGAIN_S
        known: set[ProcessKey] = set()
        while True:
            known.update(self._containment.service_of(holder))  # also what was born since
            left = [process for process in known if self._processes.alive(process)]
            if not left:
                return True
            if time.monotonic() > until_s:
                return False
            for process in left:
                self._signaller.send(Target(process, holder, why), what)
            await asyncio.sleep(look_s)
            look_s = min(_LOOK_AGAIN_MAX_S, look_s * 2)

    # -- asking

    async def _ask(self, holder: Holder) -> Answer | None:
        return await ask(self._folders.of(holder), lambda pid: self._containment.belongs(pid, holder))

    async def _found(self, holder: Holder) -> Answer | None:
        """What a process says that is there already: one that is busy for a moment is asked once more."""
        answer = await self._ask(holder)
        if answer is None and self._containment.service_of(holder):
            answer = await self._ask(holder)
        return answer


class _Begun(msgspec.Struct, frozen=True):
    """A process that is to serve a member: as whom, with which variables, and the word that lets it go on."""

    child: subprocess.Popen[bytes]
    uid: int
    variables: Mapping[str, str]
    word: bytes


def _ending(code: int) -> str:
    """How a process has ended, for people."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:  # those of real time have no name
        return f"by signal {-code}"


def _start_ahead(name: str, uid: int, folder: Path, loaded: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """See `ahead.Start`."""
    return _start(_command(uid, {**_present(folder), **loaded}, "--ahead", name), folder)


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(  # noqa: S603 - our own program
        command,
        cwd=folder,
        env=_present(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _make_ordinary(child.pid)
    return child


def _present(folder: Path) -> dict[str, str]:
    """The variables that every process has, whatever it serves."""
    handed_on = {key: os.environ[key] for key in _HANDED_ON if key in os.environ}
    return handed_on | {"HOME": str(folder), "TMPDIR": str(folder / TEMPORARY)}


def _command(uid: int, environment: Mapping[str, str], *arguments: str) -> list[str]:
    """What runs the program of services as a user. Raises `HostError`."""
    return [*_as_user(uid), *_within(environment), sys.executable, "-m", "aliquot.agent.hosting.program", *arguments]


def _within(environment: Mapping[str, str]) -> list[str]:
    """What goes before a command to set variables. It also has the command looked up by the user: setpriv by itself
    still finds programs as root.
    """
    return ["/usr/bin/env", *(f"{key}={value}" for key, value in environment.items())]


def _as_user(uid: int) -> list[str]:
    """What goes before a command. Not Popen's `user`: for that it would fork, which threads of gRPC do not
    survive, where else it can do without. Raises `HostError`.
    """
    if uid == os.geteuid():
        return []
    program = shutil.which("setpriv")
    if program is None:
        raise HostError("setpriv is missing, by which processes are run as another user", hint="install util-linux")
    return [program, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


def _make_ordinary(pid: int) -> None:
    """When memory runs out the kernel spares the agent, where it was told to: but not what the agent starts."""
    try:
        if int(_OWN_OOM_SCORE.read_text(encoding="ascii")) < 0:
            Path(f"/proc/{pid}/oom_score_adj").write_text("0", encoding="ascii")
    except OSError as error:
        log.warning("process %d keeps the agent's protection when memory runs out: %s", pid, error)


async def _reap(child: subprocess.Popen[bytes]) -> None:
    """Take note of the end of a process that was killed; one that hangs in the kernel is given up."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(child.wait, KILL_S)


def _try_as(uid: int) -> str:
    """Why what serves leases can't be started as its user; empty: it can. Python may be in a folder that is closed to
    others, which nobody would hear of before the first lease is to be served, and then again and again.
    """
    environment = {key: os.environ[key] for key in _HANDED_ON if key in os.environ}
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [*_as_user(uid), *_within(environment), sys.executable, "-c", _TRIED],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRY_TIMEOUT_S,
            check=False,
        )
    except (OSError, HostError, subprocess.TimeoutExpired) as error:
        return f"uid {uid} can't run {sys.executable} ({error})"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"uid {uid} can't run {sys.executable} ({last}): install it where every user may read it"
