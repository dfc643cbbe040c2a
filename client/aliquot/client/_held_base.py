"""The common part of both twins' held leases: the last known state, and news from the keep-alive stream."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from aliquot.client import _errors as errors
from aliquot.client._environment import local_agent_of
from aliquot.client._holding import ended_error
from aliquot.client._keeping import News, Notice, Resized, Warned
from aliquot.client._values.leases import Lease, LeaseState, Slice
from aliquot.client.local import LocalAgent

log = logging.getLogger("aliquot.client")
_ENDING = frozenset({LeaseState.RELEASING, LeaseState.ENDED})


class Flag(Protocol):
    """What `threading.Event` and `asyncio.Event` have in common."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...


F = TypeVar("F", bound=Flag)
T = TypeVar("T")


class Callbacks(NamedTuple):
    """Whom to call with news of a lease; see `HeldBase`."""

    on_lost: Callable[[errors.LeaseLost], None] | None = None
    on_notice: Callable[[int], None] | None = None
    on_resize: Callable[[Lease], None] | None = None


class HeldBase(Generic[F]):
    """A lease that this process keeps alive. Its figures are the last ones heard; `refresh` asks again."""

    def __init__(self, lease: Lease, lost: F, released: Callable[[str], None]) -> None:
        self._lease = lease
        self._loss: errors.LeaseLost | None = None
        self._released = False
        self._on_release = released
        self._joined: set[int] = set()
        self._local_agent: tuple[LocalAgent, int] | None = None
        self._local_known = False
        self.lost = lost
        """Set when the coordinator says that the lease is no longer held. An unreachable coordinator doesn't set it:
        leases outlive coordinators."""
        self.on_lost: Callable[[errors.LeaseLost], None] | None = None
        """Called with the error, from the keep-alive's thread or task."""
        self.on_notice: Callable[[int], None] | None = None
        """Called when the lease will be taken back, with the time (ms since 1970) when what runs is stopped."""
        self.on_resize: Callable[[Lease], None] | None = None
        """Called with the lease when an elastic lease has gained slices (`staying`) or must give some back (`leaving`).
        Adapt, and `acknowledge`."""
        self.exit_code: int | None = None
        """Of the program that `run` ran last, or as it is set: what the lease's end says became of it."""
        self.stops_at_ms: int | None = None
        """The time given to `on_notice`, once there is one."""

    @property
    def info(self) -> Lease:
        """The lease as last heard of."""
        return self._lease

    @property
    def lease_id(self) -> str:
        """Its id."""
        return self._lease.lease_id

    @property
    def state(self) -> LeaseState:
        """Its state as last heard of."""
        return self._lease.state

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Its parts, one per device."""
        return self._lease.slices

    @property
    def loss(self) -> errors.LeaseLost | None:
        """Why it is no longer held, once `lost` is set."""
        return self._loss

    @property
    def joined(self) -> bool:
        """Whether this process itself has joined the lease; False in a fork of it."""
        return os.getpid() in self._joined

    @property
    def released(self) -> bool:
        """Whether `release` was called."""
        return self._released

    def __repr__(self) -> str:
        where = ", ".join(sorted({part.node_name for part in self.slices})) or "nowhere yet"
        return f"<{type(self).__name__} {self.lease_id} {self._lease.gpu} {self.state.lower()} on {where}>"

    def take_news(self, news: News) -> None:
        """Take note of what the keep-alive stream says of this lease."""
        if isinstance(news, Notice):
            self.stops_at_ms = news.deadline_ms
            _call(self.on_notice, news.deadline_ms)
            return
        if isinstance(news, Resized):
            if not self._released and self._loss is None:
                _call(self.on_resize, self._learn(news.lease))
            return
        if isinstance(news, Warned):
            log.warning("lease %s: %s", self.lease_id, news.text)
            return
        if self._released or self._loss is not None:
            return
        self._loss = errors.LeaseLost(
            f"lease {self.lease_id} is no longer held ({news.reason})",
            hint="ask for another one; `aliquot get` shows how it ended",
            lease_id=self.lease_id,
            end_reason="EXPIRED" if news.reason == "LEASE_EXPIRED" else "",
            reason=news.reason,
        )
        self.lost.set()
        _call(self.on_lost, self._loss)

    def _learn(self, lease: Lease) -> Lease:
        """Replace the lease with a newer one. Its secret is kept: only the first answer carried it."""
        if not lease.secret:
            lease = replace(lease, secret=self._lease.secret)
        if lease.lease_epoch != self._lease.lease_epoch:
            self._local_known = False  # it has another place
        self._lease = lease
        # The answer to a release may say that the lease ended otherwise, before the keep-alive did.
        by_others = lease.end_reason not in {"", "RELEASED"}
        if (lease.state is LeaseState.ENDED and not self._released) or (lease.state in _ENDING and by_others):
            self._loss = ended_error(lease)
            self.lost.set()
        return lease

    def _find_local(self, agents: Sequence[LocalAgent]) -> tuple[LocalAgent, int] | None:
        """This machine's agent that serves the lease, looked up once the lease has slices. Blocks."""
        if not self._local_known:
            self._local_agent = local_agent_of(self._lease, agents)
            self._local_known = bool(self._lease.slices)
        return self._local_agent

    def _leave(self) -> None:
        """Take this process out again, or the agent would stop it with the rest. Blocks.

        Raises `AttachRefused` while this process still uses a device of the lease: nothing is released then.
        """
        if not self.joined or self._local_agent is None:
            return
        try:
            self._local_agent[0].detach(self.lease_id, self._lease.secret)
        except errors.AttachRefused as error:
            if error.stated_reason == "STILL_USING":
                raise
            # The lease is gone, so there is nothing to leave.
            log.info("leaving lease %s: %s", self.lease_id, error.message)
        except errors.AgentUnreachable as error:
            log.warning("this process could not leave lease %s: %s", self.lease_id, error.message)
        self._joined.clear()

    def _conclude(self, raised: BaseException | None) -> None:
        """At the end of a `with` block: raise if the lease was lost meanwhile."""
        if self._loss is None:
            return
        if raised is None:
            raise self._loss
        raised.add_note(f"meanwhile {self._loss.message}")


def require_agent(lease: Lease, local: tuple[LocalAgent, int] | None) -> tuple[LocalAgent, int]:
    """The local agent. Raises `AgentUnreachable` if there is none."""
    if local is not None:
        return local
    nodes = ", ".join(sorted({part.node_name or part.node_id for part in lease.slices})) or "no node yet"
    raise errors.AgentUnreachable(
        f"lease {lease.lease_id} is on {nodes}, whose agent can't be reached from this machine",
        hint="start the program there; running from another machine is not supported yet",
    )


def _call(callback: Callable[[T], None] | None, argument: T) -> None:
    if callback is None:
        return
    try:
        callback(argument)
    except Exception:
        # It is the user's code; it must not break the stream of all leases.
        log.exception("a lease's callback failed")
