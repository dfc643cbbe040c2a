"""Weights by the hash of their content."""

from __future__ import annotations

import copy
import hashlib

import pytest
import torch
from torch import nn

import aliquot.remote.torch as remote
from aliquot.remote import errors
from aliquot.remote.core import messages
from tests.remote.channels import ServerProcess


def test_a_second_client_sends_no_weights(server: ServerProcess) -> None:
    torch.manual_seed(17)
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 8))
    model[2].tied = model[0].bias
    x = torch.randn(4, 300)
    expected = copy.deepcopy(model)(x)
    sent = []
    for _ in range(2):
        device = remote.attach(server.connect(1 << 28))
        try:
            moved = remote.upload(copy.deepcopy(model), device)
            assert moved[2].tied is moved[0].bias
            sent.append(remote.session_of(device).counters.sent_bytes)
            assert torch.equal(moved(x.to(device)).detach().cpu(), expected.detach())
        finally:
            remote.detach(device)
    assert sent[0] > 300 * 300 * 4
    assert sent[1] < 2500, "hashes, sizes and nothing else"


def test_what_does_not_have_its_hash_is_not_kept(device: torch.device) -> None:
    session = remote.session_of(device)
    there = torch.ones(4, device=device)
    wrong = hashlib.sha256(b"something else").digest()
    session.flush()
    session.send(messages.Blob(there._allocation.handle, wrong))  # type: ignore[attr-defined]
    with pytest.raises(errors.RemoteOperatorError, match="SHA-256"):
        session.synchronize()
    request = session.request()
    reply, _ = session.ask(messages.Hashed(request, [(there._allocation.handle, wrong)]), request)  # type: ignore[attr-defined]
    assert reply.missing == [0]
    assert there.tolist() == [1.0] * 4
