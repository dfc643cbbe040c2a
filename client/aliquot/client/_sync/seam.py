"""Where threads differ from tasks. Its twin in `_async` has the same names."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import grpc

from aliquot.client._grpc_status import to_failure
from aliquot.client._held_base import HeldBase
from aliquot.client._methods import Answer, Request
from aliquot.client._token import Metadata

P = ParamSpec("P")
T = TypeVar("T")

Flag = threading.Event
Lock = threading.Lock
closing = contextlib.closing
sleep = time.sleep


class HeldLeaseBase(HeldBase[Flag]):
    """A property can't be awaited, so only programs with threads have this one."""

    @property
    def env(self) -> dict[str, str]:
        """The variables that make a program use this lease: `subprocess.run(cmd, env=os.environ | lease.env)`.

        See `environment`: on a node of the lease this process thereby becomes part of it.
        """
        return self.environment()

    @abstractmethod
    def environment(self, member: int | None = None) -> dict[str, str]:
        """The variables for one member of a gang."""


def wait_for(flag: Flag, seconds: float | None) -> None:
    """Wait until the flag is set or the time is over (None: no limit)."""
    flag.wait(seconds)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that blocks."""
    return function(*args, **kwargs)


def exit_code(process: subprocess.Popen[Any]) -> int:
    """Wait for a program's end."""
    with process:
        return process.wait()


class Worker:
    """Work beside the program."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for its end; it has been told to stop."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)


class GrpcExchange(Generic[Request, Answer]):
    """Both directions of a gRPC call, which takes what to send from an iterator, in a thread of its own."""

    def __init__(
        self, method: grpc.StreamStreamMultiCallable[Request, Answer], address: str, metadata: Metadata | None
    ) -> None:
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._call = method(iter(self._outbox.get, None), metadata=metadata)
        self._address = address
        self._silent = False

    def send(self, request: Request) -> None:
        """Send it; if that fails, `receive` says so."""
        self._outbox.put(request)

    def receive(self, timeout_s: float) -> Answer | None:
        """The next answer; None when the server ended the call normally. Raises `RpcFailure`, `TimeoutError`."""
        # grpc can't wait for one answer with a time limit: a deadline would be that of the whole call.
        timer = threading.Timer(timeout_s, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            return next(self._call, None)
        except grpc.RpcError as error:
            if self._silent:
                raise TimeoutError from None
            raise to_failure(error, error.trailing_metadata(), self._address) from None
        finally:
            timer.cancel()

    def cancel(self) -> None:
        """End it, from any thread."""
        self._outbox.put(None)
        self._call.cancel()

    def _give_up(self) -> None:
        self._silent = True
        self._call.cancel()
