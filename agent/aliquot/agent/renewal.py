"""When the node's certificate is to be made anew: at a moment between half and two thirds of its life, drawn anew each
time, so that ten thousand agents don't come in the same minute. One that is over is due at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from aliquot.agent import node_key
from aliquot.agent.disk.membership import Membership
from aliquot.common.backoff import Uniform
from aliquot.common.tls import fingerprints
from aliquot.v1 import agent_pb2

if TYPE_CHECKING:
    from cryptography import x509

_KEPT_MAX = 8
_PEM_CHARS_MAX = 64 * 1024
FIRST, LAST = 1 / 2, 2 / 3
REST_S = 600.0
"""Between two requests at least, whatever the clocks of both sides say."""


def renewed(member: Membership, certificate: agent_pb2.Certificate) -> Membership | None:
    """The node with what came: whom to trust, and its new certificate. None where that is not one of its pool's for its
    key. A message without a certificate changes only whom it trusts.

    Whoever stands in for the coordinator could send a certificate of its own making. So the node trusts only who is
    vouched for by whom it trusts already. Raises SecurityError.
    """
    authorities_pem = follow(
        member.authorities_pem,
        certificate.authorities_pem.decode(errors="replace"),
        certificate.vouchers_pem.decode(errors="replace"),
    )
    member = msgspec.structs.replace(member, authorities_pem=authorities_pem)
    if not certificate.chain_pem:
        return member
    chain_pem = certificate.chain_pem.decode(errors="replace")
    if not node_key.certifies(chain_pem, member.key_pem, member.authorities_pem):
        return None
    return msgspec.structs.replace(member, chain_pem=chain_pem)


class Renewal:
    """Of one session. Times in seconds are monotonic."""

    def __init__(
        self,
        member: Membership,
        *,
        wall_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        random: Uniform,
    ) -> None:
        """Raises SecurityError."""
        self.member = member
        self._monotonic_s = monotonic_s
        self._random = random
        from aliquot.common.certificates import lifetime_ms  # noqa: PLC0415 - loaded when the first key is used

        begins_ms, ends_ms = lifetime_ms(member.chain_pem)
        due_ms = begins_ms + int((ends_ms - begins_ms) * random.uniform(FIRST, LAST))
        # From here on by a clock that nobody sets, and not later than one made now would be: ours may be behind.
        due_ms = min(due_ms - wall_ms(), int((ends_ms - begins_ms) * LAST))
        self._due_s = monotonic_s() + max(0, due_ms) / 1000

    def hurry(self, spread_s: float) -> None:
        """Have it made anew within this time, at a moment of its own."""
        self._due_s = min(self._due_s, self._monotonic_s() + self._random.uniform(0, spread_s))

    def due_in_s(self) -> float:
        """How long until there is something to ask for."""
        return self._due_s - self._monotonic_s()

    def due(self) -> agent_pb2.AgentMessage | None:
        """What to ask for now; None: nothing. Raises SecurityError."""
        now_s = self._monotonic_s()
        if now_s < self._due_s:
            return None
        self._due_s = now_s + REST_S
        request = node_key.request(self.member.key_pem, self.member.node_id)
        trusts = fingerprints(self.member.authorities_pem)
        return agent_pb2.AgentMessage(renewal=agent_pb2.Renewal(request=request, trusts=trusts))


def follow(trusted_pem: str, offered_pem: str, vouchers_pem: str) -> str:
    """Whom to trust as the pool's authorities from now on, in PEM: only who is vouched for by whom is trusted already.

    The coordinator says which count now, and shows certificates of a new one's key by those before it. What somebody in
    its place makes up has no such certificate, so it changes nothing.

    An authority that is offered is taken up where one that is trusted vouches for it. One that is not offered any more
    is dropped where it vouches for one that is, so that nobody can have a node forget the later one.
    """
    from cryptography import x509  # noqa: PLC0415 - loaded when the first key is used
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    if max(len(offered_pem), len(vouchers_pem)) > _PEM_CHARS_MAX:
        return trusted_pem
    try:
        trusted = x509.load_pem_x509_certificates(trusted_pem.encode())
        offered = x509.load_pem_x509_certificates(offered_pem.encode())
        vouchers = x509.load_pem_x509_certificates(vouchers_pem.encode()) if vouchers_pem else []
    except ValueError:
        return trusted_pem
    kept = [each for each in offered if each in trusted]
    kept += [each for each in offered if each not in trusted and _vouched(each, trusted, vouchers)]
    left = [
        each for each in trusted if each not in offered and not any(_vouched(one, [each], vouchers) for one in kept)
    ]
    followed = [each for each in offered if each in kept] + left
    if not kept or len(followed) > _KEPT_MAX or followed == trusted:
        return trusted_pem
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in followed)


def _vouched(authority: x509.Certificate, by: list[x509.Certificate], vouchers: list[x509.Certificate]) -> bool:
    """Whether one of these has certified the key of an authority, which is itself signed by that key."""
    if not _signed(authority, authority):
        return False
    return any(
        voucher.public_key() == authority.public_key() and any(_signed(voucher, each) for each in by)
        for voucher in vouchers
    )


def _signed(made: x509.Certificate, by: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        made.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
