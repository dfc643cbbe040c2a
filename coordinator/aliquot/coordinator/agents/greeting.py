"""The handshake: who an agent is, whether it may come in, and the session that it gets.

A session has an epoch of its own, made of the leader epoch and a counter, so that it is higher than any that the node
ever had.
"""

from __future__ import annotations

import asyncio
import logging

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.agents.around import Around
from aliquot.coordinator.agents.session import Context, Session, refuse_second
from aliquot.coordinator.errors import ProtocolVersion
from aliquot.coordinator.reading.telemetry import AboutNode
from aliquot.coordinator.wire.agents import decode
from aliquot.v1 import agent_pb2

log = logging.getLogger(__name__)

PROTOCOL = 1
_EPOCHS_PER_LEADER = 1 << 32
_LEADER_EPOCH_MAX = (1 << 31) - 2
"""Session epochs are made of it and of as many bits again."""
_EPOCHS_SKIPPED_MAX = 1_000_000
"""Every start of a coordinator takes one: more than any pool has between a backup and its failure."""
_HELLO_TIMEOUT_S = 10.0


class Greeter:
    """See the module's docstring."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._epochs = 0
        self._raising = asyncio.Lock()

    async def greet(self, context: Context) -> Session:
        """Read an agent's Hello and begin its session. Raises AliquotError where it is refused."""
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                raw = await context.read()
        except TimeoutError:
            raise InvalidFieldError("hello", f"did not come within {_HELLO_TIMEOUT_S:.0f} s") from None
        # Only now: an agent that is refused while it still writes hears nothing of why.
        self._around.roster.check_room()
        if not isinstance(raw, bytes):
            raise InvalidFieldError("hello", "the stream ended before it began")
        message = decode(raw)
        if message.WhichOneof("message") != "hello":
            raise InvalidFieldError("hello", "the first message must be Hello")
        hello = message.hello
        if not hello.protocol_min <= PROTOCOL <= hello.protocol_max:
            raise ProtocolVersion(
                f"the agent speaks protocols {hello.protocol_min} to {hello.protocol_max}, this coordinator {PROTOCOL}",
                hint="upgrade the older of the two",
            )
        names.validate_node(hello.node_id, "hello.node_id")
        if not hello.boot_id or len(hello.boot_id) > limits.MAX_NAME_CHARS:
            raise InvalidFieldError("hello.boot_id", f"has 1 to {limits.MAX_NAME_CHARS} characters")
        key_sha256 = await self._around.prover.prove(hello, context)
        now_ms = self._around.clock.monotonic_ms()
        refuse_second(self._around.roster.get(hello.node_id), hello.boot_id, now_ms - self._around.roster.suspect_ms)
        await self._outrank(hello.leader_epoch)
        self._around.prover.require(hello.node_id, key_sha256)  # meanwhile it may have been taken away
        leader_epoch = self._around.view.leader_epoch
        self._epochs += 1
        epoch = leader_epoch * _EPOCHS_PER_LEADER + self._epochs
        session = Session(
            hello.node_id,
            hello.boot_id,
            epoch,
            now_ms,
            key_sha256,
            context,
            self._around.view,
            self._around.pool_secret,
            self._around.overtime.elsewhere,
        )
        self._around.roster.enter(session)
        self._around.roster.heard_clock(hello.node_id, hello.clock_ms)
        version = names.plain_text(hello.agent_version, limits.MAX_NAME_CHARS)
        about = AboutNode(version, "", self._around.clock.now_ms(), unknown=session.unknown)
        self._around.telemetry.put_node(hello.node_id, about)
        welcome = agent_pb2.Welcome(
            protocol=PROTOCOL,
            session_epoch=epoch,
            leader_epoch=leader_epoch,
            intervals=self._around.roster.intervals(),
            coordinator_version=self._around.version,
            coordinators=self._around.roster.coordinators(),
        )
        # Through the session, which writes one message at a time: from here on others may have something to say too.
        session.say(agent_pb2.CoordinatorMessage(welcome=welcome))
        self._around.certifier.greet(session, hello)
        return session

    async def _outrank(self, obeyed_epoch: int) -> None:
        """Lead in an epoch above one that an agent has obeyed and that our journal does not know.

        Either the journal is older than what it has led, such as a backup that was put back: then it goes on in a
        higher epoch, because the agent would refuse ours for ever. Or we were replaced and do not know it yet: then
        the journal says so when the epoch is to be raised, and we stop. The journal decides, never the agent.
        """
        if obeyed_epoch <= self._around.view.leader_epoch:
            return
        async with self._raising:  # ten thousand agents may say the same
            known_epoch = self._around.view.leader_epoch
            if obeyed_epoch <= known_epoch:
                return
            if obeyed_epoch > min(known_epoch + _EPOCHS_SKIPPED_MAX, _LEADER_EPOCH_MAX):
                raise InvalidFieldError(
                    "hello.leader_epoch",
                    f"{obeyed_epoch} is far above this pool's {known_epoch}: it can't be of this pool",
                    hint="remove node.record from this agent's state directory to let it forget what it has obeyed",
                )
            log.warning(
                "an agent has obeyed leader epoch %d, which this journal does not know (it is at %d): was an older "
                "copy of it put back? Going on in epoch %d",
                obeyed_epoch,
                known_epoch,
                obeyed_epoch + 1,
            )
            await self._around.writer.raise_leader_epoch(obeyed_epoch + 1)
