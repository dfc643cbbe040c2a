"""Whatever a client says, it hurts nobody but itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.remote.core.window import Limits
from aliquot.remote.server.doorkeeper import Refusal, admit
from aliquot.remote.server.session import ServedSession
from aliquot.v1 import remote_pb2
from tests.remote_serving.served import CREDENTIAL, LEASE, Echo

LIMITS = Limits(bytes_max=4000, frames_max=16)
NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))
UPS = st.builds(
    remote_pb2.RemoteUp,
    first=NUMBERS,
    frames=st.lists(st.one_of(st.binary(max_size=20), st.just(bytes(1500)), st.just(b"many 100")), max_size=20),
    acknowledged=NUMBERS,
    closing=st.sampled_from([False] * 9 + [True]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(UPS, max_size=25), st.lists(st.integers(0, 24), max_size=3))
def test_any_messages_are_done_in_order_or_end_the_session(messages: list[Any], breaks: list[int]) -> None:
    engines: list[Echo] = []

    def make(answer: Any) -> Echo:
        engines.append(Echo(answer))
        return engines[0]

    session = ServedSession(b"id", make, LIMITS)
    connection, _ = session.attach(0)
    try:
        for number, message in enumerate(messages):
            if number in breaks:
                session.detach(connection)
                connection, received = session.attach(0)
                assert received <= number * 20
            if not session.take(connection, message):
                assert session.over
                break
            assert session.figures()["run_ahead_frames"] <= LIMITS.frames_max
        assert not session.take(connection + 1, remote_pb2.RemoteUp()), "of a connection that there never was"
    finally:
        session.end("STOPPED", "the test is over")
        assert session.wait_closed(10)
    assert engines[0].closed


TEXTS = st.one_of(st.text(max_size=30), st.sampled_from(["l-1", "research", "l-1.1.0", CREDENTIAL, CREDENTIAL.upper()]))


@given(
    st.builds(
        remote_pb2.RemoteHello,
        version_min=st.integers(0, 3),
        version_max=st.integers(0, 2**32 - 1),
        lease_id=TEXTS,
        lease_epoch=NUMBERS,
        tenant=TEXTS,
        slice_id=TEXTS,
        credential=TEXTS,
        software=st.sampled_from(["", "aliquot 9", "x" * 1000, "\n\x1b[31m"]),
        session=st.binary(max_size=20),
    )
)
def test_any_greeting_is_admitted_rightly_or_refused(hello: Any) -> None:
    right = (
        hello.version_min <= 1 <= hello.version_max
        and hello.credential == CREDENTIAL
        and (hello.lease_id, hello.lease_epoch, hello.tenant, hello.slice_id) == ("l-1", 1, "research", "l-1.1.0")
    )
    try:
        version, part = admit(LEASE, hello, "test")
    except Refusal as refusal:
        assert not right
        assert hello.credential == CREDENTIAL or "research" not in refusal.detail, "strangers learn nothing"
    else:
        assert right
        assert (version, part.slice_id) == (1, "l-1.1.0")
