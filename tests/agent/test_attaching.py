"""What a process that wants to be attached is told in moments that a running agent passes too quickly to be met in."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.agent.core.model import Actual, Reservation, SliceSpec
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.local import service
from aliquot.agent.local.errors import NotActive
from aliquot.agent.local.peer import Peer
from aliquot.agent.processes import proc as processes
from aliquot.agent.processes.containment import Containment
from aliquot.agent.state import NodeState
from aliquot.common.ids import secret_sha256
from aliquot.common.limits import GIB
from aliquot.common.tiers import Tier
from aliquot.v1 import local_pb2


async def test_a_device_has_gone_and_its_slice_has_not_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts as set, since it was; but the device was unplugged or divided anew a moment ago."""
    monkeypatch.setattr(service, "ACTIVE_WAIT_S", 0.1)
    state = NodeState("node", "node", "boot")
    spec = SliceSpec("l-1.1.0", "l-1", 1, "GPU-gone", 250, GIB, secret_sha256=secret_sha256("secret"))
    state.book.put(Reservation(spec))
    state.actual[spec.slice_id] = Actual(limit_set=True, tier=Tier.WATCHDOG)
    containment, guard = Containment(None, state.holders, list), DeviceGuard(1.0)
    unused: Any = None
    attacher: Any = SimpleNamespace(
        containment=containment,
        attachments=SimpleNamespace(owner_of=lambda lease_id: None),
        limits=LimitSetter(state, unused, guard, containment),
        processes=processes,
    )
    local = service.LocalService(
        state=state,
        attacher=attacher,
        protects=lambda pid: False,
        look=unused,
        version="",
    )
    process = processes.key_of(os.getpid())
    assert process is not None
    with pytest.raises(NotActive, match="no device GPU-gone now"):
        await local.attach(Peer(process, 0, 0), local_pb2.AttachRequest(lease_id="l-1", secret="secret"))
    guard.close()
