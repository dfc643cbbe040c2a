"""Frames between a program and a server, over real connections that break."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable

import grpc
import pytest

from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.endpoint import Endpoint
from aliquot.remote.core.window import Limits
from aliquot.remote.errors import (
    SessionClosed,
    SessionError,
    SessionLeaseEnded,
    SessionLost,
    SessionRefused,
    SessionUnreachable,
)
from aliquot.remote.server.listening import Bounds
from aliquot.remote.wire.client import Notice, open_channel
from aliquot.remote.wire.options import CERTIFICATE_NAME
from aliquot.v1 import remote_pb2, remote_pb2_grpc
from bench.lib.delaying import DelayingProxy
from tests.agent.harness import ROOT, until
from tests.remote_serving.served import CREDENTIAL, Echo, Served, opening, serving

SHORT = Bounds(resume_s=1.0, hello_s=0.5, sessions_max=2)


def behind(served: Served, delay_s: float = 0.0) -> tuple[Served, DelayingProxy]:
    proxy = DelayingProxy(served.endpoint.port, delay_s)
    endpoint = Endpoint("127.0.0.1", proxy.port, served.endpoint.certificate_sha256)
    return Served(served.server, endpoint, served.certificate, served.engines), proxy


def test_a_connection_that_hangs_is_given_up_and_the_session_goes_on() -> None:
    with serving() as served:
        far, proxy = behind(served)
        channel = far.open()
        channel.send(b"before")
        assert channel.receive() == b"before"
        proxy.hang()  # nothing says that it is over: only that no answer comes
        channel.send(b"after")
        assert channel.receive() == b"after"
        assert channel.figures()["resumed"] == 1
        channel.close()
        proxy.close()


def test_frames_come_back_in_order() -> None:
    with serving() as served:
        channel = served.open()
        for number in range(3000):
            channel.send(b"%d" % number)
        assert [channel.receive() for _ in range(3000)] == [b"%d" % number for number in range(3000)]
        channel.send(bytes(FRAME_BYTES_MAX))
        assert len(channel.receive()) == FRAME_BYTES_MAX
        with pytest.raises(ValueError, match="are allowed"):
            channel.send(bytes(FRAME_BYTES_MAX + 1))
        channel.close()
        until(lambda: served.engines[0].closed, "the engine is closed")
        with pytest.raises(SessionClosed):
            channel.send(b"x")
        with pytest.raises(SessionClosed):
            channel.receive()


def test_what_was_done_is_acknowledged_without_anything_else_being_sent() -> None:
    with serving() as served:
        channel = served.open()
        for _ in range(5):
            channel.send(b"quiet")
        until(lambda: channel.acknowledged == 5, "five are acknowledged")
        assert served.server.figures()["ops"] == 5
        channel.close()
        until(lambda: served.server.sessions() == 0, "the session is forgotten")
        assert served.server.figures()["frames_up"] == 5, "what was counted stays"


def test_a_session_goes_on_over_another_connection_and_nothing_is_lost_or_done_twice() -> None:
    with serving() as inner:
        served, proxy = behind(inner, 0.002)
        channel = served.open()
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.extend(channel.receive() for _ in range(4000)))
        reader.start()
        for number in range(4000):
            channel.send(b"%d" % number + bytes(2000))
            if number % 1000 == 500:
                proxy.cut()
        reader.join(60)
        assert [frame.rstrip(b"\0") for frame in received] == [b"%d" % number for number in range(4000)]
        assert served.engines[0].handled == 4000, "one engine, and each frame once"
        assert channel.figures()["resumed"] >= 1
        channel.close()
        proxy.close()


def test_whoever_is_away_for_too_long_has_lost_everything() -> None:
    with serving(SHORT) as inner:
        served, proxy = behind(inner)
        channel = served.open()
        for _ in range(3):
            channel.send(b"quiet")
        until(lambda: channel.acknowledged == 3, "three are acknowledged")
        proxy.close()
        with pytest.raises(SessionLost, match="its session is lost") as caught:
            channel.receive()
        assert caught.value.acknowledged == 3
        until(lambda: served.engines[0].closed, "everything is freed")
        with pytest.raises(SessionLost):
            channel.send(b"x")


def test_a_server_that_has_died_is_an_error_that_says_how_far_it_was() -> None:
    with serving(SHORT) as served:
        channel = served.open()
        channel.send(b"a")
        channel.receive()
        until(lambda: channel.acknowledged == 1, "one is acknowledged")
        port = served.endpoint.port
        served.server._server.stop(0).wait()  # type: ignore[union-attr]
        with serving(SHORT, port) as other, pytest.raises(SessionError):
            channel.receive()
        assert not other.engines, "what another server has is not taken for it"


def test_a_locator_that_knows_ends_the_waiting() -> None:
    with serving() as inner:
        served, proxy = behind(inner)

        def preempted(*, stopped: bool) -> Endpoint | None:
            raise SessionLeaseEnded("preempted", end_reason="PREEMPTED")

        channel = served.open(locate=preempted)
        proxy.cut()
        with pytest.raises(SessionLeaseEnded) as caught:
            channel.receive()
        assert caught.value.end_reason == "PREEMPTED"
        proxy.close()


def test_running_ahead_is_bounded_and_control_passes() -> None:
    limits = Limits(bytes_max=100_000, frames_max=50)
    with serving(Bounds(window=limits)) as served:
        gate = threading.Event()
        channel = served.open()
        served.engines[0].handle = lambda frame: (gate.wait(30), None)[1]  # type: ignore[method-assign]
        sent = []

        def send() -> None:
            for number in range(200):
                channel.send(b"%d" % number)
                sent.append(number)

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: channel.figures()["run_ahead_frames"] == 50, "the window is full")
        assert len(sent) == 50
        served.server.announce(5.0, "to be ended")
        until(lambda: channel.notice is not None, "a notice comes through")
        gate.set()
        sender.join(30)
        assert len(sent) == 200
        channel.close()


def test_who_sends_without_receiving_does_not_stand_still() -> None:
    with serving(Bounds(window=Limits(bytes_max=1 << 20, frames_max=64))) as served:
        channel = served.open()
        for _ in range(300):  # answers far beyond what the server keeps for a client that takes none
            channel.send(b"many 1000")
        assert sum(len(channel.receive()) > 0 for _ in range(300_000)) == 300_000
        channel.close()


def test_an_engine_that_fails_ends_its_session_and_no_other() -> None:
    with serving() as served:
        first, second = served.open(), served.open()
        first.send(b"raise")
        with pytest.raises(SessionLost, match="RuntimeError: told to"):
            first.receive()
        second.send(b"on")
        assert second.receive() == b"on"
        second.close()


def test_notice_then_end_reach_the_client() -> None:
    heard: list[Notice] = []
    with serving() as served:
        channel = served.open(on_notice=heard.append)
        served.server.announce(7.5, "its lease is being ended")
        until(lambda: bool(heard), "the notice is heard")
        assert (heard[0].reason, heard[0].grace_s) == ("STOPPING", 7.5)
        channel.send(b"still")
        assert channel.receive() == b"still"
        with pytest.raises(SessionLeaseEnded, match="its lease is being ended"):
            served.open()
        served.server.stop("STOPPED", "its lease was ended")
        with pytest.raises(SessionLeaseEnded, match="its lease was ended"):
            channel.receive()


def test_a_notice_that_comes_while_an_engine_is_made_reaches_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Echo):
        def __init__(self, answer: Callable[[bytes], None]) -> None:
            super().__init__(answer)
            served.server.announce(7.5, "its lease is being ended")

    monkeypatch.setattr("tests.remote_serving.served.Echo", Slow)
    heard: list[Notice] = []
    with serving() as served:
        channel = served.open(on_notice=heard.append)
        until(lambda: bool(heard), "the notice is heard")
        channel.close()


def test_sessions_are_bounded() -> None:
    with serving(SHORT) as served:
        channels = [served.open(), served.open()]
        with pytest.raises(SessionRefused) as caught:
            served.open()
        assert caught.value.stated_reason == "SESSIONS"
        for channel in channels:
            channel.close()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"credential": "0" * 64}, "CREDENTIAL"),
        ({"credential": ""}, "CREDENTIAL"),
        ({"credential": "é" * 100_000}, "CREDENTIAL"),
        ({"lease_id": "l-2"}, "LEASE"),
        ({"lease_epoch": 2}, "LEASE"),
        ({"tenant": "vision"}, "LEASE"),
        ({"slice_id": "l-9.1.0"}, "SLICE"),
        ({"engine": "abacus"}, "ENGINE"),
    ],
)
def test_who_may_not_come_in_is_told_why(changed: dict[str, object], reason: str) -> None:
    with serving() as served:
        with pytest.raises(SessionRefused) as caught:
            served.open(opening(**changed))
        assert caught.value.stated_reason == reason
        assert served.server.sessions() == 0
        assert CREDENTIAL not in repr(opening())


def connect(served: Served, *messages: remote_pb2.RemoteUp) -> list[remote_pb2.RemoteDown]:
    """What a client of the bare protocol is answered."""
    pem = served.certificate.certificate_pem
    options = [("grpc.ssl_target_name_override", CERTIFICATE_NAME)]
    credentials = grpc.ssl_channel_credentials(pem)
    with grpc.secure_channel(served.endpoint.address, credentials, options=options) as channel:
        return list(remote_pb2_grpc.RemoteServiceStub(channel).Connect(iter(messages), timeout=10))


def hello(**changed: object) -> remote_pb2.RemoteUp:
    right: dict[str, object] = {"version_min": 1, "version_max": 1, "software": "test", "lease_id": "l-1"}
    right |= {"lease_epoch": 1, "tenant": "research", "slice_id": "l-1.1.0", "credential": CREDENTIAL, "engine": "echo"}
    return remote_pb2.RemoteUp(hello=remote_pb2.RemoteHello(**(right | changed)))  # type: ignore[arg-type]


def test_versions_that_do_not_meet_are_refused_with_both() -> None:
    with serving() as served:
        (answer,) = connect(served, hello(version_min=7, version_max=9))
        assert answer.end.reason == "VERSION"
        assert "7 to 9" in answer.end.detail
        assert answer.end.detail.endswith(" 1")


def test_a_newer_client_that_also_speaks_ours_is_served() -> None:
    with serving() as served:
        welcome, *_ = connect(served, hello(version_max=9), remote_pb2.RemoteUp(closing=True))
        assert welcome.welcome.version == 1


@pytest.mark.parametrize(
    "second",
    [
        remote_pb2.RemoteUp(first=5, frames=[b"x"]),
        remote_pb2.RemoteUp(acknowledged=1),
        remote_pb2.RemoteUp(first=0, frames=[b""] * 20_000),
    ],
)
def test_who_breaks_the_rules_is_sent_away(second: remote_pb2.RemoteUp) -> None:
    with serving() as served:
        answers = connect(served, hello(), second)
        assert answers[-1].end.reason == "PROTOCOL"
        until(lambda: served.server.sessions() == 0, "nothing is kept of it")


def test_somebody_elses_session_can_not_be_taken_without_its_name() -> None:
    with serving() as served:
        channel = served.open()
        for session in (bytes(16), b"x", bytes(100_000)):
            (answer,) = connect(served, hello(session=session))
            assert answer.end.reason == "UNKNOWN_SESSION"
        channel.close()


def test_the_first_message_must_be_a_hello() -> None:
    with serving() as served:
        (answer,) = connect(served, remote_pb2.RemoteUp(first=0, frames=[b"x"]))
        assert answer.end.reason == "PROTOCOL"


def test_a_stranger_who_says_nothing_is_sent_away() -> None:
    with serving(SHORT) as served:
        silent = threading.Event()

        def nothing() -> object:
            silent.wait(20)
            yield from ()

        options = [("grpc.ssl_target_name_override", CERTIFICATE_NAME)]
        credentials = grpc.ssl_channel_credentials(served.certificate.certificate_pem)
        with grpc.secure_channel(served.endpoint.address, credentials, options=options) as channel:
            call = remote_pb2_grpc.RemoteServiceStub(channel).Connect(nothing())  # type: ignore[arg-type]
            with pytest.raises(grpc.RpcError):
                next(call)
            silent.set()


def test_plaintext_is_refused() -> None:
    with serving() as served:
        with grpc.insecure_channel(served.endpoint.address) as channel, pytest.raises(grpc.RpcError):
            next(remote_pb2_grpc.RemoteServiceStub(channel).Connect(iter([hello()]), timeout=5))
        with socket.create_connection(("127.0.0.1", served.endpoint.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.settimeout(10)
            assert b"HTTP" not in plain.recv(1000)


def test_another_server_at_the_same_address_is_not_trusted() -> None:
    with serving() as served, serving() as other:
        mixed = Endpoint("127.0.0.1", other.endpoint.port, served.endpoint.certificate_sha256)
        with pytest.raises(SessionUnreachable, match="not of the process that serves the lease"):
            Served(served.server, mixed, served.certificate).open()
        assert other.server.figures()["refused"] == 0, "it was told nothing"


def test_nobody_there() -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(SessionUnreachable, match="nobody answers"):
        open_channel(Endpoint("127.0.0.1", port, bytes(32)), opening(), connect_s=0.2)


FORK = """
import os, sys
from aliquot.remote import SessionClosed
from tests.remote_serving.served import serving

with serving() as served:
    channel = served.open()
    for _ in range(50):
        channel.send(b"quiet")
        if (pid := os.fork()) == 0:
            try:
                channel.send(b"of the fork")
            except SessionClosed:
                channel.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
    channel.send(b"on")
    assert channel.receive() == b"on"
    channel.close()
print("well")
"""


def test_a_fork_of_the_program_does_not_hang_and_does_no_harm() -> None:
    """As the workers of a data loader are."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, check=False, cwd=ROOT
    )
    assert done.stdout == "well\n", done.stderr


def test_only_new_tls_is_spoken() -> None:
    with serving() as served:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", served.endpoint.port)) as plain,
            context.wrap_socket(plain) as stream,
        ):
            assert stream.version() in {"TLSv1.2", "TLSv1.3"}
