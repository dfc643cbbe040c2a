"""The GPU models that can be simulated, with the numbers the real ones report.

Memory totals and what the driver reserves are those of current drivers with ECC on; MIG geometry (slices, placements,
profile ids, engines, memory) is that of the vendor's MIG user guide. A profile's id is what instance creation takes,
its kind the enumeration value that callers ask with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from aliquot.simgpu.errors import UnknownModelError

MIB = 1 << 20

_TESLA, _NVIDIA = 2, 14
_VOLTA, _TURING, _AMPERE, _HOPPER = 5, 6, 7, 9


class MigProfile(msgspec.Struct, frozen=True):
    """One way to cut a GPU. `starts` are the memory slices at which an instance may begin."""

    name: str
    kind: int
    id: int
    slices: int
    memory_slices: int
    starts: tuple[int, ...]
    count_max: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    media_engines: int = 0


class Model(msgspec.Struct, frozen=True):
    """What is the same for every device of a model. Clocks in MHz, power in milliwatts."""

    key: str
    name: str
    pci_id: int
    brand: int
    architecture: int
    compute_capability: tuple[int, int]
    memory_mib: int
    reserved_mib: int
    context_mib: int
    bar1_mib: int
    multiprocessors: int
    cores: int
    memory_bus_bits: int
    power_limit_mw: int
    power_min_mw: int
    power_idle_mw: int
    clock_sm_max_mhz: int
    clock_memory_max_mhz: int
    pcie_generation: int
    links: int = 0
    link_mbps: int = 0
    memory_sensor: bool = True
    profiles: tuple[MigProfile, ...] = ()

    @property
    def remaps_rows(self) -> bool:
        """Ampere and later remap rows with errors; older ones retire pages."""
        return self.architecture >= _AMPERE

    @property
    def is_hopper(self) -> bool:
        """Hopper and later have GPM, and change MIG mode without a reset."""
        return self.architecture >= _HOPPER


def _geometry(
    prefix_gb: tuple[int, int, int, int, int],
    memory_mib: tuple[int, int, int, int, int],
    multiprocessors: tuple[int, int, int, int, int, int],
) -> tuple[MigProfile, ...]:
    """The geometry all 7-slice GPUs share; only sizes differ: 1g, double 1g and 2g, 3g, 4g, 7g."""
    one, double, three, four, seven = prefix_gb
    one_mib, double_mib, three_mib, four_mib, seven_mib = memory_mib
    sm = multiprocessors
    return (
        MigProfile(f"1g.{one}gb", 0x0, 19, 1, 1, tuple(range(7)), 7, one_mib, sm[0], 1, 0),
        MigProfile(f"1g.{one}gb+me", 0x7, 20, 1, 1, tuple(range(7)), 1, one_mib, sm[0], 1, 1, 1),
        MigProfile(f"1g.{double}gb", 0x9, 15, 1, 2, (0, 2, 4, 6), 4, double_mib, sm[1], 1, 1),
        MigProfile(f"2g.{double}gb", 0x1, 14, 2, 2, (0, 2, 4), 3, double_mib, sm[2], 2, 1),
        MigProfile(f"3g.{three}gb", 0x2, 9, 3, 4, (0, 4), 2, three_mib, sm[3], 3, 2),
        MigProfile(f"4g.{four}gb", 0x3, 5, 4, 4, (0,), 1, four_mib, sm[4], 4, 2),
        MigProfile(f"7g.{seven}gb", 0x4, 0, 7, 8, (0,), 1, seven_mib, sm[5], 7, 5, 1),
    )


_AMPERE_SM = (14, 14, 28, 42, 56, 98)
_HOPPER_SM = (16, 26, 32, 60, 64, 132)
_A100_40 = _geometry((5, 10, 20, 20, 40), (4864, 9856, 19968, 19968, 40192), _AMPERE_SM)
_A100_80 = _geometry((10, 20, 40, 40, 80), (9728, 19968, 40192, 40192, 80640), _AMPERE_SM)
_H100_80 = _geometry((10, 20, 40, 40, 80), (9984, 20096, 40448, 40448, 81152), _HOPPER_SM)
_H200 = _geometry((18, 35, 71, 71, 141), (16384, 33280, 71424, 71424, 143360), _HOPPER_SM)

_ALL = (
    Model(
        "T4", "Tesla T4", 0x1EB810DE, _TESLA, _TURING, (7, 5), 15360, 265, 104, 256, 40, 2560, 256,
        70_000, 60_000, 9_000, 1590, 5001, 3, memory_sensor=False,
    ),
    Model(
        "V100-16", "Tesla V100-SXM2-16GB", 0x1DB110DE, _TESLA, _VOLTA, (7, 0), 16384, 233, 304, 16384, 80, 5120, 4096,
        300_000, 150_000, 24_000, 1530, 877, 3, links=6, link_mbps=25781,
    ),
    Model(
        "V100-32", "Tesla V100-SXM2-32GB", 0x1DB510DE, _TESLA, _VOLTA, (7, 0), 32768, 267, 304, 32768, 80, 5120, 4096,
        300_000, 150_000, 24_000, 1530, 877, 3, links=6, link_mbps=25781,
    ),
    Model(
        "A10", "NVIDIA A10", 0x223610DE, _NVIDIA, _AMPERE, (8, 6), 23028, 512, 250, 32768, 72, 9216, 384,
        150_000, 100_000, 16_000, 1695, 6251, 4, memory_sensor=False,
    ),
    Model(
        "A100-40", "NVIDIA A100-SXM4-40GB", 0x20B010DE, _NVIDIA, _AMPERE, (8, 0), 40960, 622, 418, 65536, 108, 6912,
        5120, 400_000, 100_000, 48_000, 1410, 1215, 4, links=12, link_mbps=25000, profiles=_A100_40,
    ),
    Model(
        "A100-80", "NVIDIA A100-SXM4-80GB", 0x20B210DE, _NVIDIA, _AMPERE, (8, 0), 81920, 870, 418, 131072, 108, 6912,
        5120, 400_000, 100_000, 60_000, 1410, 1593, 4, links=12, link_mbps=25000, profiles=_A100_80,
    ),
    Model(
        "H100-80", "NVIDIA H100 80GB HBM3", 0x233010DE, _NVIDIA, _HOPPER, (9, 0), 81559, 551, 528, 131072, 132, 16896,
        5120, 700_000, 200_000, 70_000, 1980, 2619, 5, links=18, link_mbps=26562, profiles=_H100_80,
    ),
    Model(
        "H200", "NVIDIA H200", 0x233510DE, _NVIDIA, _HOPPER, (9, 0), 143771, 604, 528, 262144, 132, 16896,
        6144, 700_000, 200_000, 76_000, 1980, 3201, 5, links=18, link_mbps=26562, profiles=_H200,
    ),
)  # fmt: skip

MODELS: Mapping[str, Model] = MappingProxyType({model.key: model for model in _ALL})


def model(key: str) -> Model:
    """The model of that name; UnknownModelError names the ones there are."""
    found = MODELS.get(key.upper())
    if found is None:
        raise UnknownModelError(f"no GPU model {key!r} to simulate", hint=f"choose one of {', '.join(MODELS)}")
    return found
