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
import socket
import struct
import subprocess
import sys
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

import msgspec

from aliquot.agent.attaching import Attacher
from aliquot.agent.core.model import Holder
from aliquot.agent.hosting.base import SOCKET, Answer, HostError, installed, valid_endpoint
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.proc import Processes
from aliquot.agent.processes.signals import Signaller, Target
from aliquot.agent.state import NodeState
from aliquot.common.errors import AliquotError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A service may have a framework to import and a device to initialise."""
ASK_TIMEOUT_S = 5.0
REAP_TIMEOUT_S = 5.0
_LOOK_AGAIN_S = 0.05
_HANDED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG")
"""What a process gets of the agent's own environment."""
_MAX_ANSWER_BYTES = 8 << 10
_CREDENTIALS = struct.Struct("3i")
_ANSWER = msgspec.json.Decoder(Answer)
# It waits until it belongs to the lease; only then is anything loaded that the tenant's tier has to hold.
_WHEN_TOLD = 'read go && exec "$@"'


class ProcessHost:
    """See `base.Host`. Use from one event loop.

    `user`: whom the processes run as; None: the agent's own user.
    """

    def __init__(
        self,
        *,
        state: NodeState,
        attacher: Attacher,
        containment: Containment,
        signaller: Signaller,
        processes: Processes,
        directory: Path,
        user: int | None = None,
    ) -> None:
        self._state = state
        self._attacher = attacher
        self._containment = containment
        self._signaller = signaller
        self._processes = processes
        self._directory = directory
        self._user = user
        self._children: dict[Holder, subprocess.Popen[bytes]] = {}
        self._starting: defaultdict[Holder, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._installed = installed()

    def offered(self) -> frozenset[str]:
        """See `Host`."""
        return self._installed

    async def start(self, holder: Holder, name: str) -> str:
        """See `Host`."""
        if name not in self._installed:
            raise HostError(f"no service named {name} is installed on this node", hint=f"install what provides {name}")
        async with self._starting[holder]:
            try:
                if await self._ask(holder) is None:
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
            await self._end(holder, problem)
            raise HostError(problem)

    async def health(self, holder: Holder) -> str:
        """See `Host`."""
        child = self._children.get(holder)
        if child is not None:
            child.poll()  # one that has ended is not left as a zombie
        answer = await self._ask(holder)
        if answer is None:
            return "its process does not answer"
        return answer.problem or ("" if answer.endpoint else "its process is starting")

    async def stop(self, holder: Holder) -> None:
        """See `Host`."""
        self._starting.pop(holder, None)
        child = self._children.pop(holder, None)
        if child is not None:
            await _reap(child)
        await asyncio.to_thread(shutil.rmtree, self._folder(holder), ignore_errors=True)

    # -- starting

    async def _spawn(self, holder: Holder, name: str) -> None:
        records = [record for record in self._state.running(holder) if not record.quarantined]
        uid = os.geteuid() if self._user is None else self._user
        folder = self._folder(holder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(folder, uid, -1)
        present = {key: os.environ[key] for key in _HANDED_ON if key in os.environ}
        variables, _ = self._attacher.environment(records, present, uid)
        words = [f"{key}={value}" for key, value in (present | variables).items()]
        program = [sys.executable, "-m", "aliquot.agent.hosting.program", name]
        child = await asyncio.to_thread(
            subprocess.Popen,
            ["/bin/sh", "-c", _WHEN_TOLD, "sh", *self._as_user(), "/usr/bin/env", *words, *program],
            cwd=folder,
            env=present,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._children[holder] = child
        assert child.stdin is not None
        try:
            key = self._processes.key_of(child.pid)
            if key is None:
                raise HostError("its process has ended before it began")
            self._attacher.attach(key, holder, uid)
            child.stdin.write(b"go\n")
        except BaseException:
            child.kill()  # ours, not yet the lease's, and not reaped: the pid is still its own
            raise
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()
        log.info("serving", extra={"lease_id": holder.lease_id, "pid": child.pid, "service": name})

    def _as_user(self) -> list[str]:
        """What a program is run by to be another user's. Not Popen's `user`: for that it would fork, which threads of
        gRPC do not survive, where else it can do without.
        """
        if self._user is None or self._user == os.geteuid():
            return []
        program = shutil.which("setpriv")
        if program is None:
            raise HostError("setpriv is missing, by which processes are run as another user", hint="install util-linux")
        return [program, f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", "--"]

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
                raise HostError(f"{name} has ended with {child.returncode} before it answered")
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _end(self, holder: Holder, why: str) -> None:
        """Leave nothing of what was started: the child, and whatever it has started in its session. Others of the
        member's processes have attached themselves, and go on.
        """
        child = self._children.pop(holder, None)
        if child is None:
            return
        for process in self._containment.members(holder):
            facts = self._processes.facts_of(process.pid)
            if facts is not None and facts.key == process and facts.session_id == child.pid:
                self._signaller.send(Target(process, holder, why), signal.SIGKILL)
        await _reap(child)

    # -- asking

    async def _ask(self, holder: Holder) -> Answer | None:
        """What the member's process says of itself; None: it says nothing, or who answers is somebody else."""
        try:
            # A path of a socket has little more than a hundred characters; one below an open folder is short.
            descriptor = os.open(self._folder(holder), os.O_PATH | os.O_DIRECTORY)
        except OSError:
            return None
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{SOCKET}")
                try:
                    if not self._is_its(writer.get_extra_info("socket"), holder):
                        return None
                    data = await reader.read(_MAX_ANSWER_BYTES)
                finally:
                    writer.close()
            answer = _ANSWER.decode(data)
        except (OSError, TimeoutError, msgspec.DecodeError):
            return None
        finally:
            os.close(descriptor)
        return answer if not answer.endpoint or valid_endpoint(answer.endpoint) else None

    def _is_its(self, connection: socket.socket, holder: Holder) -> bool:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return self._containment.belongs(_CREDENTIALS.unpack(raw)[0], holder)

    def _folder(self, holder: Holder) -> Path:
        name = f"{holder.lease_id}\n{holder.lease_epoch}\n{holder.member}"
        return self._directory / sha256(name.encode()).hexdigest()[:32]


async def _reap(child: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process that was killed; one that hangs in the kernel is given up."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(child.wait, REAP_TIMEOUT_S)
