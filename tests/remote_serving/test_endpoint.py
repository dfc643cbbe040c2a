"""Endpoints, versions and credentials."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.ids import serving_credential
from aliquot.remote.core.endpoint import Endpoint, EndpointError, parse
from aliquot.remote.core.versions import choose

DIGESTS = st.binary(min_size=32, max_size=32)
HOSTS = st.one_of(st.from_regex(r"[a-z][a-z0-9-]{0,40}(\.[a-z]{2,10}){0,3}", fullmatch=True), st.just("fd00::1"))


@given(HOSTS, st.integers(1, 65535), DIGESTS)
def test_an_endpoint_is_read_as_it_was_written(host: str, port: int, digest: bytes) -> None:
    endpoint = Endpoint(host, port, digest)
    assert parse(str(endpoint)) == endpoint
    assert len(str(endpoint)) <= 256


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-a:7070",
        "http://gpu-a:1?sha256=" + "A" * 43,
        "remote://gpu-a?sha256=" + "A" * 43,
        "remote://gpu-a:0?sha256=" + "A" * 43,
        "remote://gpu-a:99999?sha256=" + "A" * 43,
        "remote://gpu-a:7070",
        "remote://gpu-a:7070?sha256=AAAA",
        "remote://gpu-a:7070?sha256=" + "!" * 43,
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(EndpointError):
        parse(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(EndpointError):
        parse("remote://" + text)


def test_the_newest_version_that_both_know_is_spoken() -> None:
    assert choose(1, 3, own_min=2, own_max=5) == 3
    assert choose(1, 9, own_min=2, own_max=5) == 5
    assert choose(6, 9, own_min=2, own_max=5) is None
    assert choose(1, 1, own_min=2, own_max=5) is None


def test_a_credential_is_bound_to_secret_lease_epoch_and_tenant() -> None:
    right = ("secret", "l-1", 1, "research")
    others = [("other", "l-1", 1, "research"), ("secret", "l-2", 1, "research"), ("secret", "l-1", 2, "research")]
    others.append(("secret", "l-1", 1, "vision"))
    assert len({serving_credential(*each) for each in [right, *others]}) == 5
    assert serving_credential(*right) == serving_credential(*right)
