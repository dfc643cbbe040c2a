"""When the node's certificate is to be made anew: at a moment between half and two thirds of its life, drawn anew each
time, so that ten thousand agents don't come in the same minute. One that is over is due at once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from aliquot.agent.disk.membership import Membership
from aliquot.agent.processes.apart import Apart
from aliquot.common.backoff import Uniform
from aliquot.common.tls import fingerprints
from aliquot.v1 import agent_pb2

FIRST, LAST = 1 / 2, 2 / 3
REST_S = 600.0
"""Between two requests at least, whatever the clocks of both sides say."""


async def renewed(apart: Apart, member: Membership, certificate: agent_pb2.Certificate) -> Membership | None:
    """The node with what came: whom to trust, and its new certificate. None where that is not one of its pool's for its
    key. A message without a certificate changes only whom it trusts.

    Whoever stands in for the coordinator could send a certificate of its own making. So the node trusts only who is
    vouched for by whom it trusts already. Raises SecurityError and OSError.
    """
    came = (certificate.chain_pem, certificate.authorities_pem, certificate.vouchers_pem)
    found = await apart("aliquot.agent.node_certificate:certified", member.key_pem, member.authorities_pem, *came)
    if found is None:
        return None
    authorities_pem, chain_pem, life_ms = found
    member = msgspec.structs.replace(member, authorities_pem=authorities_pem)
    return msgspec.structs.replace(member, chain_pem=chain_pem, life_ms=tuple(life_ms)) if chain_pem else member


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
        self.member = member
        self._monotonic_s = monotonic_s
        self._random = random
        begins_ms, ends_ms = member.life_ms
        length_ms = ends_ms - begins_ms
        due_ms = begins_ms + int(length_ms * random.uniform(FIRST, LAST))
        # From here on by a clock that nobody sets, and not later than one made now would be: ours may be behind.
        due_ms = min(due_ms - wall_ms(), int(length_ms * LAST))
        self._due_s = monotonic_s() + max(0, due_ms) / 1000

    def hurry(self, spread_s: float) -> None:
        """Have it made anew within this time, at a moment of its own."""
        self._due_s = min(self._due_s, self._monotonic_s() + self._random.uniform(0, spread_s))

    def due_in_s(self) -> float:
        """How long until there is something to ask for."""
        return self._due_s - self._monotonic_s()

    def due(self) -> bool:
        """Whether to ask now; then not again for a while."""
        now_s = self._monotonic_s()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + REST_S
        return True

    async def asked(self, apart: Apart) -> agent_pb2.AgentMessage:
        """What to ask for. Raises SecurityError and OSError."""
        request = await apart("aliquot.agent.node_certificate:request", self.member.key_pem, self.member.node_id)
        trusts = fingerprints(self.member.authorities_pem)
        return agent_pb2.AgentMessage(renewal=agent_pb2.Renewal(request=request, trusts=trusts))
