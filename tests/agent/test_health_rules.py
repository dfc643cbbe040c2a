"""Health goes both ways: at once down, slowly up, and a program's own fault is not the device's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.agent.core.health import CALM_MS, CALM_SAMPLES, Health, on_failure, on_sample, on_xid
from aliquot.agent.core.samples import DeviceEvent, DeviceInfo, EventKind, HealthSample, RecoveryAction
from aliquot.agent.core.signals import XidSeverity, asked_by, severity_of, signal_of

WELL = HealthSample(recovery_action=RecoveryAction.NONE, remap_pending=False, remap_failed=False)
SILENT = HealthSample()


def recover(health: Health, sample: HealthSample, from_ms: int) -> tuple[Health, int]:
    """Samples a second apart until healthy again, and how many it took (at most 100)."""
    for number in range(1, 101):
        health = on_sample(health, sample, from_ms + number * 1000)
        if health.healthy:
            return health, number
    return health, 101


def test_a_lost_device_is_unhealthy_at_once_and_healthy_again_only_after_a_calm_while() -> None:
    health = on_failure(Health(), "GPU is lost", 1_000)
    assert not health.healthy
    back, samples = recover(health, WELL, 1_000)
    assert back == Health()
    assert samples >= CALM_SAMPLES
    assert samples * 1000 >= CALM_MS


def test_one_bad_sample_starts_the_calm_while_again() -> None:
    health = on_failure(Health(), "GPU is lost", 0)
    for second in range(1, 10):
        health = on_sample(health, WELL, second * 1000)
    health = on_sample(health, HealthSample(recovery_action=RecoveryAction.RESET), 10_000)
    assert not on_sample(health, WELL, 11_000).healthy


@given(st.sampled_from([13, 31, 43, 45, 68, 63, 94, 137]))
def test_a_programs_own_fault_takes_no_device_out_of_service(xid: int) -> None:
    assert on_xid(Health(), xid, None, 0).healthy


@given(st.sampled_from([46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 145]))
def test_a_device_fault_takes_it_out_and_says_why(xid: int) -> None:
    health = on_xid(Health(), xid, None, 0)
    assert not health.healthy
    assert str(xid) in health.reason


@given(st.sampled_from([46, 62, 74, 119, 120, 143, 144, 150, 158]))
def test_a_fault_that_the_driver_recovered_from_takes_no_device_out_of_service(xid: int) -> None:
    assert on_xid(Health(), xid, RecoveryAction.NONE, 0).healthy
    assert not on_xid(Health(), xid, RecoveryAction.RESET, 0).healthy


@given(st.sampled_from([48, 64, 79, 95, 140, 171, 172]))
def test_uncontained_faults_take_it_out_until_the_driver_says_that_it_is_well(xid: int) -> None:
    health = on_xid(Health(), xid, RecoveryAction.NONE, 0)
    assert not health.healthy
    assert recover(health, WELL, 0)[0].healthy


def test_an_imex_domain_to_be_recovered_is_no_fault_of_the_device() -> None:
    assert on_sample(Health(), HealthSample(recovery_action=RecoveryAction.RECOVER_IMEX_DOMAIN), 0).healthy
    assert on_xid(Health(), 74, RecoveryAction.RECOVER_IMEX_DOMAIN, 0).healthy


def test_a_disputed_fault_is_the_devices_only_if_the_driver_says_so() -> None:
    assert on_xid(Health(), 109, RecoveryAction.NONE, 0).healthy
    assert on_xid(Health(), 109, None, 0).healthy
    assert not on_xid(Health(), 109, RecoveryAction.RESET, 0).healthy


@given(st.sampled_from([46, 48, 62, 74, 79, 95, 119, 120]))
def test_silence_never_clears_a_fault(xid: int) -> None:
    """Ten minutes of good samples from a driver that has no recovery action, then one from a driver that has."""
    health = on_xid(Health(), xid, None, 0)
    for second in range(1, 601):
        health = on_sample(health, SILENT, second * 1000)
    assert not health.healthy
    assert str(xid) in health.reason
    assert "restart the agent" in health.reason, "whoever repairs it must know what ends this"
    assert recover(health, WELL, 600_000)[0].healthy


def test_a_fault_is_not_forgotten_over_a_call_that_failed_later() -> None:
    health = on_failure(on_xid(Health(), 79, None, 0), "GPU is lost", 1_000)
    assert not recover(health, SILENT, 1_000)[0].healthy


def test_row_remapping_counts_unless_the_recovery_action_says_that_it_can_wait() -> None:
    assert not on_sample(Health(), HealthSample(remap_pending=True), 0).healthy
    assert not on_sample(Health(), HealthSample(remap_failed=True, recovery_action=RecoveryAction.NONE), 0).healthy
    assert on_sample(Health(), HealthSample(remap_pending=True, recovery_action=RecoveryAction.NONE), 0).healthy


def test_uncorrectable_errors_count_where_the_driver_has_no_recovery_action() -> None:
    assert not on_sample(Health(), HealthSample(uncorrected_errors=2), 0).healthy
    assert on_sample(Health(), HealthSample(uncorrected_errors=2, recovery_action=RecoveryAction.NONE), 0).healthy


@given(st.integers(0, 400))
def test_every_number_has_an_answer(xid: int) -> None:
    assert severity_of(xid) in XidSeverity
    signal = signal_of(xid)
    if signal is not None and signal.takes_out:
        assert asked_by(xid)


@given(st.integers(0, 400), st.sampled_from([None, *RecoveryAction]))
def test_only_faults_of_devices_take_one_out(xid: int, recovery: RecoveryAction | None) -> None:
    if not on_xid(Health(), xid, recovery, 0).healthy:
        assert severity_of(xid) in {XidSeverity.FATAL, XidSeverity.DEGRADED}


signs = st.one_of(
    st.tuples(st.just("xid"), st.integers(0, 200)),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("well"), st.just(0)),
)


@given(st.lists(signs, max_size=40))
def test_healthy_again_never_earlier_than_the_calm_while(history: list[tuple[str, int]]) -> None:
    health, now_ms, last_bad_ms = Health(), 0, -CALM_MS
    for kind, number in history:
        now_ms += 1_000
        before = health
        if kind == "xid":
            health = on_xid(health, number, RecoveryAction.NONE, now_ms)
        elif kind == "fail":
            health = on_failure(health, "lost", now_ms)
        else:
            health = on_sample(health, WELL, now_ms)
        if not health.healthy and health.bad_ms == now_ms:
            last_bad_ms = now_ms
        if health.healthy and not before.healthy:
            assert now_ms - last_bad_ms >= CALM_MS
        assert health.healthy or health.reason


CATALOGUE = {
    (XidSeverity.PROGRAM, ""): "8 11 13 25 31 32 39-41 43 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    (XidSeverity.NONE, ""): "37 38 44 45 63 66 67 78 92 93 106 107 121 137 141 152 153 157 160-165",
    (XidSeverity.FATAL, "reset the device"): "46 48 62 95 109 110 119 120 136 140 143 155 156 158 171 172",
    (XidSeverity.DEGRADED, "check the NVLink fabric"): "74 144-150",
    (XidSeverity.DEGRADED, "check the power cables"): "54",
    (XidSeverity.FATAL, "restart the machine"): "79 151",
    (XidSeverity.FATAL, "have the device serviced"): "64 142",
}
"""What follows from the driver's documentation, number by number; nothing follows from any other."""


def test_every_number_means_what_the_drivers_documentation_says() -> None:
    known: dict[int, tuple[XidSeverity, str]] = {}
    for meant, text in CATALOGUE.items():
        for word in text.split():
            first, _, last = word.partition("-")
            known.update(dict.fromkeys(range(int(first), int(last or first) + 1), meant))

    def meaning(xid: int) -> tuple[XidSeverity, str]:
        signal = signal_of(xid)
        return severity_of(xid), asked_by(xid) if signal is not None and signal.takes_out else ""

    assert {xid: meaning(xid) for xid in range(200)} == {
        xid: known.get(xid, (XidSeverity.UNKNOWN, "")) for xid in range(200)
    }


def test_calm_takes_both_its_samples_and_its_time() -> None:
    sick = on_failure(Health(), "GPU is lost", 5_000)
    soon = on_sample(on_sample(on_sample(sick, WELL, 5_001), WELL, 5_002), WELL, 5_000 + CALM_MS - 1)
    assert not soon.healthy
    assert on_sample(soon, WELL, 5_000 + CALM_MS).healthy
    late = on_sample(on_sample(sick, WELL, 90_000), WELL, 91_000)
    assert not late.healthy
    assert on_sample(late, WELL, 92_000).healthy
    assert on_sample(late, WELL, 92_000, calm_ms=87_001).good_samples == CALM_SAMPLES


def test_each_recovery_action_but_two_concerns_the_device() -> None:
    others = {RecoveryAction.NONE, RecoveryAction.RECOVER_IMEX_DOMAIN}
    assert {action for action in RecoveryAction if not action.concerns_device} == others


def test_what_a_device_has_to_lease_and_which_card_it_is() -> None:
    part = DeviceInfo("MIG-1", 0, "A100", "A100-40", "nvidia", 5, 7, parent_uuid="GPU-1")
    assert (part.leasable_bytes, part.physical_uuid) == (0, "GPU-1")
    assert replace(part, memory_reserved_bytes=1, parent_uuid="").leasable_bytes == 4
    assert replace(part, parent_uuid="").physical_uuid == "MIG-1"
    assert [str(DeviceEvent("GPU-1", 79)), str(DeviceEvent("GPU-1", kind=EventKind.ASK))] == [
        "XID 79",
        "health event <EventKind.ASK: 'ask'>",
    ]
