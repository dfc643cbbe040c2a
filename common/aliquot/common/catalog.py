"""GPU models and vendors: one canonical name per model, whatever a driver, a trace or a user calls it.

`A100-80` is a canonical name, `A100` its family. A request for a family is served by any size of it; a request for a
canonical model only by that model. Names that the catalogue does not know are upper-cased and match only themselves,
so a pool may declare any model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from aliquot.common._models import MODELS, Model
from aliquot.common.limits import MAX_MODEL_CHARS
from aliquot.common.text import nearest

_VENDORS: Final = (
    ("nvidia", "NVIDIA", "nvidia.com/gpu"),
    ("amd", "AMD", "amd.com/gpu"),
    ("intel", "Intel", "intel.com/gpu"),
    ("npu", "Ascend", "huawei.com/npu", "huawei", "ascend"),
    ("gaudi", "Gaudi", "habana.ai/gaudi", "habana"),
    ("tpu", "TPU", "google.com/tpu", "google"),
    ("mthreads", "Moore Threads", "mthreads.com/gpu", "musa"),
    ("cambricon", "Cambricon", "cambricon.com/mlu", "mlu"),
    ("hygon", "Hygon", "hygon.com/dcu", "dcu"),
    ("metax", "MetaX", "metax-tech.com/gpu"),
    ("kunlun", "Kunlun", "kunlunxin.com/xpu", "kunlunxin"),
    ("enflame", "Enflame", "enflame.com/gcu", "gcu"),
    ("iluvatar", "Iluvatar", "iluvatar.ai/gpu"),
)
"""As requests name them, as people write them, their device plugin's resource in Kubernetes, and other names."""
VENDORS: Final = tuple(vendor for vendor, *_ in _VENDORS)
"""Whose software a device speaks: Intel's Gaudi is apart from its GPUs, because no program runs on both."""
VENDOR_ALIASES: Final = MappingProxyType({other: vendor for vendor, _, _, *others in _VENDORS for other in others})
_TITLES: Final = {vendor: title for vendor, title, *_ in _VENDORS}
NEUTRAL_WORDS: Final = frozenset({"gpu", "vgpu"})
"""Words that are accepted in place of a vendor and mean any."""
RESOURCE_NAMES: Final = MappingProxyType({vendor: resource for vendor, _, resource, *_ in _VENDORS})
"""The Kubernetes extended resource of each vendor's device plugin."""
DEFAULT_RESOURCE_NAME: Final = RESOURCE_NAMES["nvidia"]
WHOLE_ONLY: Final = frozenset({"gaudi", "tpu"})
"""Vendors whose devices are leased whole: their drivers let one process at a time use one."""
ANY_KIND: Final = "*"
"""In a price list: all kinds of devices that it does not name."""

_MIG_SUFFIX = re.compile(r"\s+MIG\s+\d+[cg]\..*$", re.IGNORECASE)
_VENDOR_PREFIX = re.compile(r"^(?:(?:NVIDIA|TESLA|QUADRO|GEFORCE|GRID|AMD|RADEON|INTEL|HUAWEI|GOOGLE|HABANA)[ -]+)+")
_VGPU = re.compile(r".*-\d+(?:[ABCQ]|ME)\d?")
"""A part of a card, cut by a hypervisor: `A100-10C`, `A100D-7-80C`. Whoever asks for an A100 is not served by it."""
_MARKS = re.compile(r"\((?:R|TM|C)\)")
_MEMORY_TOLERANCE_PERCENT: Final = 10
# Drivers of different ages report up to 3 % less for one model; the nearest two sizes of one family are 17 % apart.


def _key(name: str) -> str:
    """The same for every spelling of a known name: `rtx-3090`, `RTX 3090` and `RTX3090`."""
    return re.sub(r"[\s_-]+", "", name).upper()


BY_NAME: Final = MappingProxyType({model.name: model for model in reversed(MODELS)})
FAMILIES: Final = frozenset(model.family for model in MODELS)
_BY_KEY: Final = {
    **{_key(name): name for name in FAMILIES},
    **{_key(alias): model.name for model in MODELS for alias in model.aliases},
    **{_key(name): name for name in BY_NAME},
}


@lru_cache(maxsize=1)
def _products() -> tuple[tuple[re.Pattern[str], Model], ...]:
    """Compiled when the first product is looked up: most programs that read requests are never told of one."""
    return tuple((re.compile(pattern), model) for model in MODELS for pattern in model.products)


@lru_cache(maxsize=4096)
def canonical_name(name: str) -> str:
    """The one spelling of a model's name: `v100m16` is `V100-16`, `A100-SXM4-80GB` is `A100-80`, `g2` is `G2`.

    Blanks inside an unknown name become `-`, so that every name can be written in a request.
    """
    known = _BY_KEY.get(_key(name)) or _from_product(name, None)
    if known is not None:
        return known
    cleaned = _cleaned(name)
    return _BY_KEY.get(_key(cleaned)) or _from_product(cleaned, None) or cleaned


def canonical_model(product_name: str, memory_total_bytes: int | None = None) -> str:
    """The model of a device from its driver's product name (`NVIDIA A100-SXM4-80GB` is `A100-80`).

        Where a product comes in several sizes and its name does not say which, the memory decides; if it fits none of
    them, or is unknown, the answer is the family. A MIG instance has the model of its card. An unknown product keeps
    its name, without the characters that can't be written in a request.
    """
    return _from_product(product_name, memory_total_bytes) or canonical_name(product_name)


@lru_cache(maxsize=4096)
def vendor_of(name: str) -> str | None:
    """The vendor of a known model or family; None for a name the catalogue does not know."""
    canonical = canonical_name(name)
    return next((model.vendor for model in MODELS if canonical in (model.name, model.family)), None)


def memory_total_bytes(name: str) -> int | None:
    """The memory of a known model; None for unknown names and for families of several sizes."""
    canonical = canonical_name(name)
    if canonical in BY_NAME:
        return BY_NAME[canonical].memory_total_bytes
    sizes = {model.memory_total_bytes for model in MODELS if canonical in (model.name, model.family)}
    return sizes.pop() if len(sizes) == 1 else None


def parse_vendor(word: str) -> str | None:
    """The vendor that a word names (`nvidia`, `AMD`, `ascend`); None when it names none."""
    folded = word.lower()
    return folded if folded in VENDORS else VENDOR_ALIASES.get(folded)


def vendor_title(vendor: str) -> str:
    """The vendor as people write it: `NVIDIA` for `nvidia`, `Ascend` for `npu`."""
    return _TITLES.get(vendor, vendor)


def parse_kind(word: str) -> str:
    """What a quota or a price speaks of: a vendor by any of its names, or else the word as it is: a model's name."""
    return parse_vendor(word) or word


@lru_cache(maxsize=65_536)
def kind_of(model: str, vendor: str) -> str:
    """What a device counts as in quotas: its model, and with the vendor that its agent says (`amd:MI999X`) where the
    catalogue does not know the model.
    """
    return model if not vendor or vendor_of(model) is not None else f"{vendor}:{model}"


@lru_cache(maxsize=65_536)
def covers(kind: str, model: str) -> bool:
    """Whether what is said of a kind of devices is said of a model, too: the model itself, its family, its vendor.

    A model that the catalogue does not know has no vendor here, unless `kind_of` gave it one. `model` may be a vendor,
    too, where no more is known.
    """
    if kind == model or not kind:
        return kind == model
    vendor, colon, name = model.partition(":")
    if colon and vendor in VENDORS:
        return kind in (vendor, name)
    if kind in VENDORS:
        return vendor_of(model) == kind
    return model in BY_NAME and BY_NAME[model].family == kind


def nearness(kind: str) -> int:
    """How near what is said of a kind comes to one model, to choose between several: the larger, the nearer."""
    if kind == ANY_KIND:
        return 0
    return 1 if kind in VENDORS else 3 if kind in BY_NAME and BY_NAME[kind].family != kind else 2


@dataclass(frozen=True, slots=True)
class Mistake:
    """Why a name can't be a model's, and what was probably meant."""

    expected: str
    suggestion: str | None


def mistaken_model(name: str) -> Mistake | None:
    """Why a name is certainly not a model: a vendor's name, perhaps misspelled, or look-alike letters (`A10O`).

    None for anything else: a pool may well have an H300 that the catalogue does not know.
    """
    canonical = canonical_name(name)
    if canonical in BY_NAME or canonical in FAMILIES:
        return None
    word = canonical.lower()
    if parse_vendor(word) is not None or word in NEUTRAL_WORDS:
        return Mistake("a model; a vendor stands apart, after a comma", None)
    vendor = nearest(word, _LONG_VENDOR_WORDS, cutoff=0.8)
    if vendor:
        return Mistake("a model or a vendor", vendor[0])
    lookalike = _BY_LOOKS.get(_key(canonical).translate(_LOOKS_LIKE))
    return Mistake("a model", lookalike) if lookalike is not None else None


def nearest_names(name: str, candidates: Iterable[str] | None = None, limit: int = 3) -> tuple[str, ...]:
    """The names most like this one, best first: among `candidates`, such as a pool's models, or all the catalogue's."""
    among = sorted({*BY_NAME, *FAMILIES} if candidates is None else {canonical_name(each) for each in candidates})
    return tuple(nearest(canonical_name(name), among, limit, 0.5))


# Short words are too similar to real names: TPU is not a misspelled NPU.
_LONG_VENDOR_WORDS: Final = tuple(word for word in (*VENDORS, *VENDOR_ALIASES) if len(word) >= 5)
_LOOKS_LIKE: Final = str.maketrans("OIL", "011")
_BY_LOOKS: Final = {key.translate(_LOOKS_LIKE): name for key, name in _BY_KEY.items()}


def _from_product(product_name: str, memory_bytes: int | None) -> str | None:
    is_mig = _MIG_SUFFIX.search(product_name) is not None
    product = _plain_product(_MIG_SUFFIX.sub("", product_name))
    found = [model for pattern, model in _products() if pattern.fullmatch(product)]
    # Others call whole cards so: HL-225B.
    if not found or (found[0].vendor == "nvidia" and _VGPU.fullmatch(product)):
        return None
    exact = next((model.name for model in found if not model.by_memory), None)
    # A MIG instance reports its own part of the memory, which does not tell the size of its card.
    return exact or (None if is_mig else _nearest_size(found, memory_bytes)) or found[0].family


def _nearest_size(models: list[Model], memory_bytes: int | None) -> str | None:
    if not memory_bytes:
        return None
    best = min(models, key=lambda model: abs(model.memory_total_bytes - memory_bytes))
    off_percent = abs(best.memory_total_bytes - memory_bytes) * 100 // best.memory_total_bytes
    return best.name if off_percent < _MEMORY_TOLERANCE_PERCENT else None


def _plain_product(product_name: str) -> str:
    """A product name upper-cased, without marks such as `(R)` and without the vendor's name."""
    return _VENDOR_PREFIX.sub("", " ".join(_MARKS.sub(" ", product_name.upper()).split()))


def _cleaned(name: str) -> str:
    """An unknown name, with only what can be written in a request. Applying it twice changes nothing more."""
    kept = re.sub(r"[^A-Z0-9._-]+", "-", _plain_product(name))
    return _VENDOR_PREFIX.sub("", kept).strip("._-")[:MAX_MODEL_CHARS].strip("._-") or "UNKNOWN"


def with_families(models: Iterable[str]) -> tuple[str, ...]:
    """These names, where a family's stands for each of its models, and for devices that only say the family; sorted."""
    asked = frozenset(models)
    return tuple(sorted(asked.union(model.name for model in BY_NAME.values() if model.family in asked)))
