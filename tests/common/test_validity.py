"""Somebody is told before a certificate is over, when it is, and when its renewal can't be used."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from pathlib import Path

import pytest

from aliquot.common.duties import Duties
from aliquot.common.errors import SecurityError
from aliquot.common.tls import ServerContext, ServerTls
from aliquot.common.validity import Certificates, Lifetime
from tests.certificates import Authority

ENDS = dt.datetime(2026, 3, 22, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


class Clock:
    def __init__(self, at: dt.datetime) -> None:
        self.at = at

    def now_ms(self) -> int:
        return int(self.at.timestamp() * 1000)


@pytest.mark.parametrize(
    ("days", "early"),
    [(90, 14 * DAY), (400, 14 * DAY), (4, DAY)],
    ids=["three months", "more than a year", "renewed every few days"],
)
def test_what_is_not_renewed_is_told_before_it_ends(authority: Authority, days: int, early: dt.timedelta) -> None:
    clock = Clock(ENDS - early - DAY / 24)
    found = Certificates(clock.now_ms, ServerTls(*authority.certify_until("server", ENDS, days)))
    assert found.look() == ""
    assert found.lifetimes()["server"].ends_s() == ENDS.timestamp()
    clock.at = ENDS - early
    assert found.look() == "the certificate (server) is to be renewed: it ends 2026-03-22 12:00 UTC"
    assert found.lifetimes()["server"].due_s() == clock.at.timestamp()
    clock.at = ENDS
    assert found.look() == "the certificate (server) has ended 2026-03-22 12:00 UTC"


def test_a_renewal_that_can_not_be_used_is_told_until_it_is_mended(authority: Authority) -> None:
    certificate, key = authority.certify_until("server", ENDS)
    clock = Clock(ENDS - 30 * DAY)
    found = Certificates(clock.now_ms, ServerTls(certificate, key))
    good, mine = certificate.read_bytes(), key.read_bytes()
    _, others = authority.certify("other")
    for file, content in ((certificate, b"torn"), (key, others.read_bytes()), (certificate, b"")):
        file.write_bytes(content)
        assert "can't be used; the old one stays" in found.look()
        assert found.lifetimes()["server"].ends_s() == ENDS.timestamp(), "the one that is shown counts"
        for each, whole in ((certificate, good), (key, mine)):
            each.write_bytes(whole)
        assert found.look() == ""
    certificate.unlink()
    assert "can't be used" in found.look()
    renewed, its_key = authority.certify_until("server", ENDS + 60 * DAY)
    assert (renewed, its_key) == (certificate, key)
    clock.at = ENDS
    assert found.look() == ""


def test_what_is_not_there_is_not_told_of() -> None:
    assert Certificates(Clock(ENDS).now_ms, None, {"node": lambda: Lifetime(0, 0)}).lifetimes() == {}
    with pytest.raises(SecurityError):
        Certificates(Clock(ENDS).now_ms, ServerTls(Path("absent.pem"), Path("absent.key")))


def test_a_duty_that_fails_is_said_once_and_again_when_it_is_done(caplog: pytest.LogCaptureFixture) -> None:
    changes: list[dict[str, str]] = []
    why = "disk full"
    duties = Duties(lambda: changes.append(duties.failing()))
    duties.tell("records")
    duties.watch("snapshots", lambda: why)
    for _ in range(3):
        duties.look()
    assert duties.all() == {"records": "", "snapshots": "disk full"}
    assert changes == [{"snapshots": "disk full"}]
    assert caplog.text.count("disk full") == 1
    why = ""
    duties.look()
    assert changes[1:] == [{}]
    assert "snapshots is done again" in caplog.text


def shown_by(port: int, ca: Path) -> str:
    """When the certificate ends that a server shows to who trusts this authority."""
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=45) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        found = secured.getpeercert()
        assert found is not None
        return str(found["notAfter"])


def test_servers_by_python_s_ssl_show_what_is_renewed_and_never_half_of_it(authority: Authority) -> None:
    now = dt.datetime.now(dt.UTC)
    certificate, key = authority.certify_until("server", now + 20 * DAY)
    secured = ServerContext(ServerTls(certificate, key))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    secured.context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        first = shown_by(port, authority.ca)
        _, others = authority.certify("other")
        mine = key.read_bytes()
        key.write_bytes(others.read_bytes())
        assert shown_by(port, authority.ca) == first, "half a renewal"
        assert secured.following.problem
        key.write_bytes(mine)
        authority.certify_until("server", now + 40 * DAY)
        assert shown_by(port, authority.ca) != first
        assert not secured.following.problem
        listener.shutdown(socket.SHUT_RDWR)
