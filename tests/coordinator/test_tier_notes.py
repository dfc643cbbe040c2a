"""Why no stronger tier holds a slice: kept while the slice is held, believed of nobody but its own node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.common.tiers import NOT_SERVED, ON_SHARE
from aliquot.coordinator.agents.listening import as_held
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.values.types import DeviceSpec
from aliquot.coordinator.reading.totals import DeviceUse
from aliquot.coordinator.reading.usage import NOTE_CHARS_MAX, NOTES_MAX, ObservedUse
from aliquot.coordinator.wire.leases import notes_on_tiers
from aliquot.v1 import agent_pb2, types_pb2
from tests.core.harness import Books, node, request
from tests.manual_clock import ManualClock


def report(slice_id: str, *notes: str) -> agent_pb2.SliceReport:
    return agent_pb2.SliceReport(slice_id=slice_id, status=agent_pb2.SLICE_STATUS_ACTIVE, tier_notes=notes)


def test_notes_last_as_long_as_the_slice_and_come_from_its_node() -> None:
    books = Books()
    books.connect(node("one"))
    lease = books.activate(books.allocate(request(500)))
    (piece,) = lease.holding
    use = ObservedUse(ManualClock(1), books.state.leases.get, lambda uuid: 0, lambda uuid: None)
    notes = use.tier_notes
    notes.note("n-other", [report(piece.slice_id, "driver: somebody else's word")])
    notes.note("n-one", [report("l-unknown.1.0", "driver: of no slice")])
    assert len(notes) == 0
    notes.note("n-one", [report(piece.slice_id, "mig: no", "driver: no")])
    notes.note("n-other", [report(piece.slice_id)])
    assert notes.of(piece.slice_id) == ("mig: no", "driver: no")
    notes.note("n-one", [report(piece.slice_id, *["x" * 10_000] * 100)])
    assert notes.of(piece.slice_id) == ("x" * NOTE_CHARS_MAX,) * NOTES_MAX
    notes.note("n-one", [report(piece.slice_id)])
    assert notes.of(piece.slice_id) == (), "it is held by the strongest now"
    notes.note("n-one", [report(piece.slice_id, "mig: no")])
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    use.lease_changed(lease, books.again(lease))
    assert len(notes) == 0


def test_slices_of_which_the_same_holds_share_a_line() -> None:
    def piece(number: int, tier: types_pb2.Tier.ValueType, *notes: str) -> types_pb2.Slice:
        return types_pb2.Slice(slice_id=f"l.1.{number}", tier=tier, tier_notes=notes)

    alike = [piece(number, types_pb2.TIER_PRELOAD, "mig: no") for number in range(6)]
    others = [piece(6, types_pb2.TIER_WATCHDOG, "mig: no", "preload: no"), piece(7, types_pb2.TIER_NONE, "mig: no")]
    assert notes_on_tiers([*alike, *others, piece(8, types_pb2.TIER_MIG)]) == [
        "held by preload, by no stronger tier because mig: no (l.1.0, l.1.1, l.1.2, l.1.3 and 2 more)",
        "held by watchdog, by no stronger tier because mig: no; preload: no (l.1.6)",
    ]


@pytest.mark.parametrize("begins", [f"{NOT_SERVED}, next try after 4 s", f"{ON_SHARE}0.5 is a guarantee"])
def test_what_is_no_note_on_a_slices_tier_stands_by_itself(begins: str) -> None:
    note = f"{begins}: remote: it broke"
    pieces = [
        types_pb2.Slice(slice_id=f"l.1.{number}", tier=tier, tier_notes=["mig: no", note])
        for number, tier in enumerate((types_pb2.TIER_PRELOAD, types_pb2.TIER_NONE))
    ]
    assert notes_on_tiers(pieces) == [
        f"{note} (l.1.0, l.1.1)",
        "held by preload, by no stronger tier because mig: no (l.1.0)",
    ]


def test_a_device_that_is_held_as_more_than_it_says_is_no_other_device() -> None:
    told = DeviceSpec("MIG-1", "A100-40", 10 << 30, mig_profile="2g.10gb", compute_milli=285)
    whole = DeviceSpec("GPU-1", "A100-40", 40 << 30)
    uses = {told.uuid: DeviceUse("n", told, "default", share_milli=1000)}
    assert as_held((told, whole), uses) == (replace(told, compute_milli=1000), whole)
    uses[told.uuid].share_milli = 0
    assert as_held((told, whole), uses) == (told, whole)
