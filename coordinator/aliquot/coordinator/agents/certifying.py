"""Nodes' certificates, made in sessions that their keys have opened, and whom agents are to trust.

When the pool's authority changes, all agents are told, and each asks for a certificate at a moment of its own; with
that it says whom it trusts now, which becomes a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from aliquot.common.clock import Clock
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.agents.session import Session
from aliquot.coordinator.agents.submitting import offer
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import agent_pb2

if TYPE_CHECKING:
    from aliquot.coordinator.agents.authority import Generations

_MS_EACH = 2
"""Of processor time that a renewal may cost, with all that follows from it."""
_TRUSTS_MAX = 16


class Certifier:
    """See the module's docstring."""

    def __init__(self, authority: Callable[[], Generations], view: View, writer: Writer, clock: Clock) -> None:
        """`authority` says what it is now; it is asked only where keys are used."""
        self._authority = authority
        self._view = view
        self._writer = writer
        self._clock = clock

    def greet(self, session: Session, hello: agent_pb2.Hello) -> None:
        """A session begins: its agent says whom it trusts, and is told where that is not how it should be."""
        held = _digests(hello.trusts, "hello.trusts")
        if not held:
            return  # it is older than generations
        session.trusts_authorities = True
        now = self._authority()
        self._note(session, now, held)
        if held != {each.sha256 for each in now.trusted}:
            session.say(_announced(now, 0))

    def renew(self, session: Session, renewal: agent_pb2.Renewal) -> None:
        """A certificate for the key that has opened the session; whether the old one still counts doesn't matter.

        Raises InvalidFieldError.
        """
        from aliquot.coordinator.agents.authority import NodeRequest  # noqa: PLC0415 - cryptography, only where it is used

        certified = NodeRequest(renewal.request, "renewal.request")
        if certified.key_sha256 != session.key_sha256:
            raise InvalidFieldError("renewal.request", "is for another key than the one that has opened the session")
        now = self._authority()
        held = _digests(renewal.trusts, "renewal.trusts")
        if held:
            self._note(session, now, held)
        chain = now.certify_node(certified, session.node_id, self._clock.now_ms(), known=now.known_by(held))
        message = _announced(now, 0)
        message.certificate.chain_pem = chain
        session.say(message)

    def _note(self, session: Session, now: Generations, held: set[bytes]) -> None:
        enrolled = self._view.books.enrolled.get(session.node_id)
        number = now.known_by(held)
        if enrolled is not None and number and enrolled.generation != number:
            offer(self._writer, c.NoteTrust(number, node_id=session.node_id))


def tell_authority(authority: Callable[[], Generations], sessions: Iterable[Session]) -> None:
    """The pool's authority has changed."""
    told = [session for session in sessions if session.trusts_authorities]
    if told:
        message = _announced(authority(), _MS_EACH * len(told))
        for session in told:
            session.say(message)


def _announced(now: Generations, spread_ms: int) -> agent_pb2.CoordinatorMessage:
    certificate = agent_pb2.Certificate(authorities_pem=now.pem, vouchers_pem=now.vouchers, spread_ms=spread_ms)
    return agent_pb2.CoordinatorMessage(certificate=certificate)


def _digests(trusts: Iterable[bytes], field: str) -> set[bytes]:
    """Raises InvalidFieldError."""
    held = list(trusts)
    if len(held) > _TRUSTS_MAX:
        raise InvalidFieldError(field, f"{len(held)}; at most {_TRUSTS_MAX}")
    return set(held)
