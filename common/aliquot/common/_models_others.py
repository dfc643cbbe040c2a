"""The models of all vendors but NVIDIA, with the memory that a lease can be given.

Where the figures come from:

- AMD: what amdgpu says in `mem_info_vram_total`, as `rocm-smi --showmeminfo vram` in public bug reports shows it: a
  card of N GiB has 16 MiB less (MI300X 206,141,652,992 bytes, RX 7900 XTX 24,560 MiB), newer Radeons less still. Of the
  MI250 and MI250X one half: each is a device.
- Intel: nominal; xe and i915 report less, by what the driver keeps and, on Flex and Max, by ECC.
- Gaudi: Intel's data sheets. TPU: the table of Google's own `tpu-info`; of v2 and v3 one of a chip's two cores, of all
  others a chip.
- Ascend: what `npu-smi info` shows and HAMi's table of devices has: 310P3 21,527 MiB of 24 GiB; 910B4 half of what
  its sisters have.
- Moore Threads, Cambricon, Hygon, MetaX, Kunlun, Enflame, Iluvatar: data sheets, nominal.
"""

from __future__ import annotations

from typing import Final

from aliquot.common._model import Model

_RADEON: Final = r"(?:RADEON )?"


def _amd(name: str, memory_mib: int, *products: str, aliases: tuple[str, ...] = ()) -> Model:
    return Model(name, name, "amd", memory_mib, products, aliases)


def _radeon(name: str, memory_mib: int, product: str, *aliases: str) -> Model:
    return Model(name, name, "amd", memory_mib, (_RADEON + product,), aliases)


def _arc(name: str, memory_mib: int, *products: str, aliases: tuple[str, ...] = ()) -> Model:
    return Model(name, name, "intel", memory_mib, products, aliases)


def _ascend(name: str, family: str, memory_mib: int, *products: str, aliases: tuple[str, ...] = ()) -> Model:
    patterns = tuple(rf"(?:ASCEND ?)?{product}" for product in products)
    return Model(name, family, "npu", memory_mib, patterns, (f"ASCEND{name}", *aliases))


def _tpu(name: str, memory_gib: int, product: str, *aliases: str) -> Model:
    return Model(name, name, "tpu", memory_gib << 10, (rf"(?:TPU ?)?{product}(?: CHIP)?",), aliases)


def _nominal(vendor: str, name: str, memory_gib: int, *products: str, aliases: tuple[str, ...] = ()) -> Model:
    return Model(name, name, vendor, memory_gib << 10, products or (name,), aliases)


OTHERS: Final[tuple[Model, ...]] = (
    _amd("MI100", 32752, "INSTINCT MI100.*"),
    _amd("MI210", 65520, "INSTINCT MI210.*"),
    _amd("MI250", 65520, "INSTINCT MI250(?!X).*"),
    _amd("MI250X", 65520, "INSTINCT MI250X.*"),
    _amd("MI300X", 196592, "INSTINCT MI300X.*"),
    _amd("MI300A", 131072, "INSTINCT MI300A.*"),
    _amd("MI308X", 196592, "INSTINCT MI308X.*"),
    _amd("MI325X", 262128, "INSTINCT MI325X.*"),
    _amd("MI350X", 294896, "INSTINCT MI350X.*"),
    _amd("MI355X", 294896, "INSTINCT MI355X.*"),
    _radeon("W6800", 30704, "PRO W6800"),
    _radeon("W7800", 30704, "PRO W7800"),
    _radeon("W7900", 46064, "PRO W7900.*"),
    _radeon("R9700", 32624, "AI PRO R9700.*"),
    _radeon("RX6800XT", 16368, "RX 6800 XT", "6800XT"),
    _radeon("RX6900XT", 16368, "RX 6900 XT", "6900XT"),
    _radeon("RX7900GRE", 16368, "RX 7900 GRE", "7900GRE"),
    _radeon("RX7900XT", 20464, "RX 7900 XT", "7900XT"),
    _radeon("RX7900XTX", 24560, "RX 7900 XTX", "7900XTX"),
    _radeon("RX9070", 16304, "RX 9070", "9070"),
    _radeon("RX9070XT", 16304, "RX 9070 XT", "9070XT"),
    _arc("MAX1100", 49152, "DATA CENTER GPU MAX 1100"),
    _arc("MAX1550", 131072, "DATA CENTER GPU MAX 1550"),
    _arc("FLEX140", 6144, "DATA CENTER GPU FLEX 140"),
    _arc("FLEX170", 16384, "DATA CENTER GPU FLEX 170"),
    _arc("ARC-A770", 16384, "ARC A770(?: GRAPHICS)?", aliases=("A770",)),
    _arc("ARC-B570", 10240, "ARC B570(?: GRAPHICS)?", aliases=("B570",)),
    _arc("ARC-B580", 12288, "ARC B580(?: GRAPHICS)?", aliases=("B580",)),
    _arc("ARC-B50", 16384, "ARC PRO B50(?: GRAPHICS)?", aliases=("B50",)),
    _arc("ARC-B60", 24576, "ARC PRO B60(?: GRAPHICS)?", aliases=("B60",)),
    _nominal("gaudi", "GAUDI1", 32, "(?:HL-20.*|GAUDI)"),
    _nominal("gaudi", "GAUDI2", 96, "(?:HL-225.*|GAUDI ?2)"),
    _nominal("gaudi", "GAUDI3", 128, r"(?:HL-3\d\d.*|GAUDI ?3)"),
    _ascend("310P", "310P", 21527, r"310P\d?", aliases=("310P3",)),
    _ascend("910A", "910A", 32768, "910(?:A|PROA)?", aliases=("910",)),
    _ascend("910B1", "910B", 65536, "910B1"),
    _ascend("910B2", "910B", 65536, "910B2", "910B2C"),
    _ascend("910B3", "910B", 65536, "910B3"),
    _ascend("910B4-1", "910B", 65536, "910B4-1"),
    _ascend("910B4", "910B", 32768, "910B4"),
    _ascend("910B", "910B", 65536, "910B"),
    _ascend("910C", "910C", 65536, r"910(?:C|_93\d+)"),
    _tpu("TPU-V2", 8, "V2"),
    _tpu("TPU-V3", 16, "V3"),
    _tpu("TPU-V4", 32, "V4"),
    _tpu("TPU-V5E", 16, "(?:V5E|V5 ?LITE)", "V5LITEPOD"),
    _tpu("TPU-V5P", 95, "V5P"),
    _tpu("TPU-V6E", 32, "V6E", "TRILLIUM"),
    _tpu("TPU-7X", 192, "7X", "IRONWOOD"),
    _nominal("mthreads", "MTT-S80", 16, "MTT S80"),
    _nominal("mthreads", "MTT-S3000", 32, "MTT S3000"),
    _nominal("mthreads", "MTT-S4000", 48, "MTT S4000"),
    _nominal("cambricon", "MLU370-X4", 24, "MLU370-X4"),
    _nominal("cambricon", "MLU370-X8", 48, "MLU370-X8"),
    _nominal("cambricon", "MLU590", 80, "MLU590.*"),
    _nominal("hygon", "Z100L", 32, "Z100L?"),
    _nominal("hygon", "K100", 64, "K100"),
    _nominal("hygon", "K100-AI", 64, "K100[_ -]AI"),
    _nominal("metax", "C500", 64, "(?:METAX )?C500"),
    _nominal("metax", "C550", 64, "(?:METAX )?C550"),
    _nominal("kunlun", "P800", 96, "(?:KUNLUN ?)?P800.*"),
    _nominal("kunlun", "R200", 32, "(?:KUNLUN ?)?R200.*"),
    _nominal("enflame", "S60", 48, "S60"),
    _nominal("iluvatar", "BI-V100", 32, "(?:ILUVATAR )?BI-V100"),
    _nominal("iluvatar", "BI-V150", 64, "(?:ILUVATAR )?BI-V150"),
)
