"""Settings for frameworks: within the lease, merged with the user's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.enforce.frameworks import DevicePart, settings
from aliquot.common.tiers import Tier

GIB = 1 << 30


def part(memory_gib: int = 10, device_gib: int = 40, tier: Tier = Tier.WATCHDOG) -> DevicePart:
    return DevicePart(memory_gib * GIB, device_gib * GIB, tier)


def test_the_denominator_is_what_the_framework_sees() -> None:
    physical, _ = settings([part()], {})
    assert 0.23 < float(physical["XLA_CLIENT_MEM_FRACTION"]) < 0.25
    lease, _ = settings([part(tier=Tier.PRELOAD)], {})
    assert 0.94 < float(lease["XLA_CLIENT_MEM_FRACTION"]) < 1.0


def test_whole_devices_need_nothing() -> None:
    assert settings([part(tier=Tier.NONE)], {"ALIQUOT_TORCH_VERSION": "2.9"}) == ({}, [])


def test_the_smallest_part_decides_for_all() -> None:
    both, _ = settings([part(10), part(4)], {})
    alone, _ = settings([part(4)], {})
    assert both == alone


def test_pytorch_is_told_only_when_it_understands() -> None:
    assert "PYTORCH_ALLOC_CONF" not in settings([part()], {})[0]
    old, notes = settings([part()], {"ALIQUOT_TORCH_VERSION": "2.8.1+cu128"})
    assert "PYTORCH_ALLOC_CONF" not in old
    assert "2.8.1" in notes[0]
    new, _ = settings([part()], {"ALIQUOT_TORCH_VERSION": "2.10.0"})
    assert new["PYTORCH_ALLOC_CONF"].startswith("per_process_memory_fraction:0.23")


def test_the_users_own_pytorch_settings_are_kept() -> None:
    theirs = "expandable_segments:True,roundup_power2_divisions:[256:1,512:2],per_process_memory_fraction:0.9"
    merged, _ = settings([part()], {"ALIQUOT_TORCH_VERSION": "2.9", "PYTORCH_CUDA_ALLOC_CONF": theirs})
    text = merged["PYTORCH_ALLOC_CONF"]
    assert text.startswith("expandable_segments:True,roundup_power2_divisions:[256:1,512:2],")
    assert text.count("per_process_memory_fraction") == 1
    assert float(text.rpartition(":")[2]) < 0.25
    less, _ = settings(
        [part()], {"ALIQUOT_TORCH_VERSION": "2.9", "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.1"}
    )
    assert less["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.1000"


def test_jax_is_never_given_both_names() -> None:
    older, _ = settings([part()], {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"})
    assert "XLA_CLIENT_MEM_FRACTION" not in older
    assert float(older["XLA_PYTHON_CLIENT_MEM_FRACTION"]) < 0.25
    modest, _ = settings([part()], {"XLA_CLIENT_MEM_FRACTION": ".05"})
    assert "XLA_CLIENT_MEM_FRACTION" not in modest


def test_cupy_keeps_a_smaller_limit() -> None:
    for modest in ("5%", str(GIB)):
        assert "CUPY_GPU_MEMORY_LIMIT" not in settings([part()], {"CUPY_GPU_MEMORY_LIMIT": modest})[0]
    for greedy in ("90%", str(39 * GIB), "0", "nonsense", ""):
        assert int(settings([part()], {"CUPY_GPU_MEMORY_LIMIT": greedy})[0]["CUPY_GPU_MEMORY_LIMIT"]) < 10 * GIB


@given(
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 40),
    st.sampled_from(list(Tier)),
    st.dictionaries(
        st.sampled_from(
            ["PYTORCH_ALLOC_CONF", "XLA_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT", "ALIQUOT_TORCH_VERSION"]
        ),
        st.text(max_size=20),
    ),
)
def test_whatever_the_user_has_set_the_result_is_within_the_lease(
    memory: int, more: int, tier: Tier, present: dict[str, str]
) -> None:
    mine = DevicePart(memory, memory + more, tier)
    found, _ = settings([mine], present)
    if "XLA_CLIENT_MEM_FRACTION" in found:
        assert float(found["XLA_CLIENT_MEM_FRACTION"]) * mine.seen_bytes <= memory
    if "CUPY_GPU_MEMORY_LIMIT" in found:
        assert int(found["CUPY_GPU_MEMORY_LIMIT"]) <= memory
