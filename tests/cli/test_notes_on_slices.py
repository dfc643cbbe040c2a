"""What `aliquot get` says of slices beside their table: why no stronger tier holds them, or nothing serves."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group

from aliquot.cli._views import lease_view
from aliquot.client._from_proto import lease_of
from aliquot.common.tiers import NOT_SERVED, ON_SHARE
from aliquot.v1 import types_pb2


@pytest.mark.parametrize("begins", [f"{NOT_SERVED}, next try after 8 s", f"{ON_SHARE}0.5 guarantees nothing"])
@pytest.mark.parametrize("tier", [types_pb2.TIER_WATCHDOG, types_pb2.TIER_NONE])
def test_what_is_not_about_a_tier_is_shown_as_it_is(tier: types_pb2.Tier.ValueType, begins: str) -> None:
    note = f"{begins}: remote: the framework is not there"
    active, notes = types_pb2.SLICE_STATE_ACTIVE, ["mig: no", note]
    slices = [types_pb2.Slice(slice_id=f"l.1.{n}", state=active, tier=tier, tier_notes=notes) for n in range(2)]
    lease = lease_of(types_pb2.Lease(lease_id="l", state=types_pb2.LEASE_STATE_ACTIVE, slices=slices))
    out = io.StringIO()
    Console(file=out, width=200).print(Group(*lease_view(lease)))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines.count(note) == 1
    assert lines.count("no stronger tier: mig: no") == (tier != types_pb2.TIER_NONE)
