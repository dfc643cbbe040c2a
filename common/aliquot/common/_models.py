"""The table behind `catalog`: NVIDIA's models, and those of all other vendors, with the memory to lease.

`memory_mib` is the total that a recent driver reports (ECC on where it is the default), or the nominal figure where no
report is known. It is used only until the device itself is reported. `products` are regular expressions for
the driver's product name, upper-cased and without the vendor's name. The table is searched from top to bottom, so the
more specific product comes first. With `by_memory`, one product name covers several sizes and the reported memory
decides.

Where the figures of the others come from:

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

from dataclasses import dataclass
from typing import Final

_RADEON: Final = r"(?:RADEON )?"


@dataclass(frozen=True, slots=True)
class Model:
    """One GPU model. `family` is what a request may name to get any size of it."""

    name: str
    family: str
    vendor: str
    memory_mib: int
    products: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    by_memory: bool = False

    @property
    def memory_total_bytes(self) -> int:
        return self.memory_mib << 20


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


_OTHERS: Final[tuple[Model, ...]] = (
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


def _nvidia(
    name: str,
    family: str,
    memory_mib: int,
    *products: str,
    aliases: tuple[str, ...] = (),
    by_memory: bool = False,
) -> Model:
    return Model(name, family, "nvidia", memory_mib, products or (name,), aliases, by_memory)


def _rtx(number: str, memory_mib: int) -> Model:
    """A GeForce: `RTX3090TI`, which people call `3090 Ti`, too."""
    glued = number.replace(" ", "")
    return _nvidia(f"RTX{glued}", f"RTX{glued}", memory_mib, f"RTX {number}", aliases=(glued,))


_SXM: Final = r"(?:-(?:SXM\d?|PCIE|PG\d+\w*|DGXS|FHHL))?"
# Where cards of one name came with several sizes of memory, the size that is met most.
_GEFORCE: Final = {
    "2060": 6144, "2070": 8192, "2070 SUPER": 8192, "2080": 8192, "2080 SUPER": 8192, "2080 TI": 11264,
    "3050": 8192, "3060": 12288, "3060 TI": 8192, "3070": 8192, "3070 TI": 8192, "3080": 10240, "3080 TI": 12288,
    "3090": 24576, "3090 TI": 24564,
    "4060": 8188, "4060 TI": 8188, "4070": 12282, "4070 SUPER": 12282, "4070 TI": 12282, "4070 TI SUPER": 16376,
    "4080": 16376, "4080 SUPER": 16376, "4090": 24564, "4090 D": 24564,
    "5060": 8151, "5060 TI": 16311, "5070": 12227, "5070 TI": 16303, "5080": 16303, "5090": 32607, "5090 D": 32607,
}  # fmt: skip
_ADA: Final = {"2000": 16380, "4000": 20475, "4500": 24570, "5000": 32760, "5880": 49140, "6000": 49140}
_AMPERE: Final = {"2000": 12282, "4000": 16376, "4500": 20470, "5000": 24564, "5500": 24564, "6000": 49140}
_PRO: Final = {"4000": 24467, "4500": 32623, "5000": 48935, "6000": 97887}

MODELS: Final[tuple[Model, ...]] = (
    _nvidia("T4", "T4", 15360),
    _nvidia("P4", "P4", 7680),
    _nvidia("P40", "P40", 24576),
    _nvidia("P100", "P100", 16384, "P100.*"),
    _nvidia("V100-16", "V100", 16384, rf"V100{_SXM}-16GB(?:-\w+)?", aliases=("V100M16",)),
    _nvidia("V100-32", "V100", 32768, rf"V100S?{_SXM}-32GB(?:-\w+)?", aliases=("V100M32", "V100S")),
    _nvidia("V100-16", "V100", 16384, rf"V100{_SXM}", by_memory=True),
    _nvidia("V100-32", "V100", 32768, rf"V100{_SXM}", by_memory=True),
    _nvidia("A2", "A2", 15356),
    _nvidia("A10", "A10", 23028),
    _nvidia("A10G", "A10G", 23028),
    _nvidia("A16", "A16", 15356),
    _nvidia("A30", "A30", 24576),
    _nvidia("A40", "A40", 46068),
    _nvidia("A100-40", "A100", 40960, rf"A100{_SXM}-40GB"),
    _nvidia("A100-80", "A100", 81920, rf"A100{_SXM}-80GB", "A100 80GB PCIE"),
    _nvidia("A100-40", "A100", 40960, r"A100(?!\d).*", by_memory=True),
    _nvidia("A100-80", "A100", 81920, r"A100(?!\d).*", by_memory=True),
    _nvidia("A800-40", "A800", 40960, rf"A800{_SXM}-40GB", "A800 40GB ACTIVE"),
    _nvidia("A800-80", "A800", 81920, rf"A800{_SXM}-80GB", "A800 80GB PCIE"),
    _nvidia("H100-80", "H100", 81559, "H100 80GB HBM3", "H100 PCIE"),
    _nvidia("H100-94", "H100", 95830, "H100 NVL", "H100 HBM2E 94GB"),
    _nvidia("H100-80", "H100", 81559, r"H100(?!\d).*", by_memory=True),
    _nvidia("H100-94", "H100", 95830, r"H100(?!\d).*", by_memory=True),
    _nvidia("H800", "H800", 81559, "H800.*"),
    _nvidia("H20", "H20", 97871, r"H20(?!\d).*"),
    _nvidia("H200", "H200", 143771, r"H200(?: NVL| \d+GB.*)?", aliases=("H200-141",)),
    _nvidia("GH200-96", "GH200", 97871, "GH200.*", by_memory=True),
    _nvidia("GB300", "GB300", 284208, "GB300.*"),
    _nvidia("GB200", "GB200", 189471, "GB200.*"),
    _nvidia("B300", "B300", 275040, "B300.*"),
    _nvidia("B200", "B200", 183359, "B200.*", aliases=("B200-180", "B200-192")),
    _nvidia("L4", "L4", 23034),
    _nvidia("L20", "L20", 46068),
    _nvidia("L40", "L40", 46068),
    _nvidia("L40S", "L40S", 46068),
    *(_nvidia(f"A{n}", f"A{n}", mib, rf"RTX A{n}(?: \d+GB)?", aliases=(f"RTXA{n}",)) for n, mib in _AMPERE.items()),
    *(
        _nvidia(f"RTX{n}-ADA", f"RTX{n}-ADA", mib, f"RTX {n} ADA GENERATION", aliases=(f"{n}ADA",))
        for n, mib in _ADA.items()
    ),
    *(_nvidia(f"RTX-PRO-{n}", f"RTX-PRO-{n}", mib, f"RTX PRO {n} BLACKWELL.*") for n, mib in _PRO.items()),
    *(_rtx(number, mib) for number, mib in _GEFORCE.items()),
    _nvidia("GTX1080TI", "GTX1080TI", 11264, "GTX 1080 TI", aliases=("1080TI",)),
    _nvidia("RTX6000", "RTX6000", 24576, "RTX 6000"),
    _nvidia("RTX8000", "RTX8000", 49152, "RTX 8000"),
    _nvidia("TITAN-V", "TITAN-V", 12288, "TITAN V"),
    _nvidia("TITAN-RTX", "TITAN-RTX", 24576, "TITAN RTX"),
    _nvidia("K80", "K80", 11441),
    *_OTHERS,
)
