"""The table behind `catalog`: NVIDIA's models; those of all others follow from `_models_others`.

`memory_mib` is the total that a recent driver reports (ECC on where it is the default), or the nominal figure where no
report is known. It is used only until the device itself is reported. `products` are regular expressions for
the driver's product name, upper-cased and without the vendor's name. The table is searched from top to bottom, so the
more specific product comes first. With `by_memory`, one product name covers several sizes and the reported memory
decides.
"""

from __future__ import annotations

from typing import Final

from aliquot.common._model import Model
from aliquot.common._models_others import OTHERS


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
    *OTHERS,
)
