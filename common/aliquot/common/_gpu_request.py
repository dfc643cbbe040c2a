"""A parsed GPU request, always valid, and its canonical text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aliquot.common import catalog, limits
from aliquot.common.errors import InvalidFieldError
from aliquot.common.quantity import format_bytes, format_milli

MIG_PROFILE: Final = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:\+me\.all|\+me|\+gfx|-me)?")
"""The form of NVML's profile names. Which profiles exist depends on the device."""
VNPU_TEMPLATE: Final = re.compile(r"vir[0-9]{2}(?:_[0-9]{1,2}c)?(?:_[0-9]{1,3}g)?(?:_n?dvpp)?")
"""The form of the names of Ascend's templates for virtual NPUs, which are to their cards what MIG profiles are."""


def vendor_of_profile(profile: str) -> str | None:
    """Whose cards are cut into instances of such a name; None: it is no profile's name."""
    if MIG_PROFILE.fullmatch(profile):
        return "nvidia"
    return "npu" if VNPU_TEMPLATE.fullmatch(profile) else None


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """`count` slices, each on its own device of one node.

    `share_milli` and `memory_bytes` are per slice. At least one is given; None means proportional to the other on the
    device chosen. `models` holds sets in order of preference; empty means any. `vendors` holds two or more, in order of
    preference, and `vendor` is None then; that order comes before that of models. A MIG request asks for whole
    instances: share 1000 and no memory. The constructor raises `InvalidFieldError` for anything else; `build` accepts
    raw values.
    """

    count: int = 1
    share_milli: int | None = None
    memory_bytes: int | None = None
    models: tuple[tuple[str, ...], ...] = ()
    vendor: str | None = None
    mig_profile: str | None = None
    vendors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_range(self.count, "count", 1, limits.MAX_SLICES_PER_REQUEST)
        if self.share_milli is not None:
            _check_range(self.share_milli, "share_milli", 1, limits.WHOLE_SHARE_MILLI)
        if self.memory_bytes is not None:
            _check_range(self.memory_bytes, "memory_bytes", 1, limits.MAX_SLICE_MEMORY_BYTES)
        if self.share_milli is None and self.memory_bytes is None:
            raise InvalidFieldError("share_milli", "neither a share nor memory is asked for")
        self._check_vendors()
        _check_models(self.models, (self.vendor,) if self.vendor is not None else self.vendors)
        if self.mig_profile is not None:
            self._check_mig(self.mig_profile)

    def _check_vendors(self) -> None:
        named = [("vendors", each) for each in self.vendors] + [("vendor", self.vendor)] * (self.vendor is not None)
        for field, vendor in named:
            if vendor not in catalog.VENDORS:
                raise InvalidFieldError(
                    field, f"{vendor!r} is not a vendor", hint=f"one of {', '.join(catalog.VENDORS)}"
                )
        if self.vendors and (self.vendor is not None or len(set(self.vendors)) < max(len(self.vendors), 2)):
            raise InvalidFieldError("vendors", "not in canonical form", hint="make the request with GpuRequest.build")

    def _check_mig(self, profile: str) -> None:
        owner = vendor_of_profile(profile)
        if owner is None:
            raise InvalidFieldError(
                "mig_profile", f"{profile!r} is not a MIG profile", hint="write one such as 1g.10gb"
            )
        if self.share_milli != limits.WHOLE_SHARE_MILLI:
            raise InvalidFieldError("share_milli", "a MIG instance is held whole", hint="leave the share out")
        if self.memory_bytes is not None:
            raise InvalidFieldError("memory_bytes", "a MIG profile states its memory", hint="leave the memory out")
        for vendor in self.vendors or (self.vendor,):
            if vendor not in (None, owner):
                raise InvalidFieldError("vendor", _other_vendors(owner, vendor))

    def __str__(self) -> str:
        return format_request(self)

    @classmethod
    def of_spec(cls, spec: Any) -> GpuRequest:  # noqa: ANN401 - a GpuSpec of the contract, which common does not know
        """Makes a request from its message. Raises `InvalidFieldError`."""
        return cls.build(
            count=spec.count,
            share_milli=spec.share_milli,
            memory_bytes=spec.memory_bytes,
            models=[models.any_of for models in spec.models],
            vendor=spec.vendor,
            mig_profile=spec.mig_profile,
            vendors=spec.vendors,
        )

    @classmethod
    def build(
        cls,
        *,
        count: int = 1,
        share_milli: int | None = None,
        memory_bytes: int | None = None,
        models: Iterable[Iterable[str]] = (),
        vendor: str | None = None,
        mig_profile: str | None = None,
        vendors: Iterable[str] = (),
    ) -> GpuRequest:
        """Makes a request from wire values: names in any spelling, zero and empty for unset.

        A MIG profile implies a share of 1000, and `vendors` of one are that `vendor`. Raises `InvalidFieldError`.
        """
        preferred = list(vendors)
        if vendor and preferred:
            raise InvalidFieldError("vendors", "a vendor is named beside them", hint="name it among them, or alone")
        known = tuple(
            dict.fromkeys(catalog.parse_vendor(each) or each for each in (preferred or [vendor or ""]) if each)
        )
        return cls(
            count=count or 1,
            share_milli=share_milli or (limits.WHOLE_SHARE_MILLI if mig_profile else None),
            memory_bytes=memory_bytes or None,
            models=canonical_models(models),
            vendor=known[0] if len(known) == 1 else None,
            mig_profile=mig_profile.lower() if mig_profile else None,
            vendors=known if len(known) > 1 else (),
        )


def canonical_models(models: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """Model sets with canonical names, sorted; each name only in the most preferred set that has it.

    So two requests that mean the same are equal. Raises `InvalidFieldError` for a name that is empty or too long.
    """
    seen: set[str] = set()
    preferences: list[tuple[str, ...]] = []
    for level, names in enumerate(models):
        fresh = {_canonical(name, f"models[{level}]") for name in names} - seen
        seen |= fresh
        if fresh:
            preferences.append(tuple(sorted(fresh)))
    return tuple(preferences)


def format_request(request: GpuRequest) -> str:
    """The canonical text: `parse_request(format_request(r)) == r` for every request."""
    where = ">".join("|".join(names) for names in request.models)
    where = ",".join(part for part in (request.vendor or ">".join(request.vendors), where) if part)
    brackets = f"({where})" if where else ""
    times = f"{request.count}x" if request.count > 1 else ""
    if request.mig_profile is not None:
        return f"{times}{request.mig_profile}{brackets}"
    # Always with a suffix: a bare number counts GPUs here.
    memory = None if request.memory_bytes is None else format_bytes(request.memory_bytes, bare=False)
    if request.share_milli is None:
        return f"{times}{memory}{brackets}"
    whole = request.share_milli == limits.WHOLE_SHARE_MILLI
    compute = str(request.count) if whole else times + format_milli(request.share_milli)
    return f"{compute}{brackets}" + (f",{memory}" if memory else "")


def _canonical(name: str, field: str) -> str:
    if not 0 < len(name.strip()) <= limits.MAX_MODEL_CHARS:
        raise InvalidFieldError(field, f"a model's name has 1 to {limits.MAX_MODEL_CHARS} characters")
    mistake = catalog.mistaken_model(name)
    if mistake is not None:
        hint = f"did you mean {mistake.suggestion}?" if mistake.suggestion else ""
        raise InvalidFieldError(field, f"{name!r} is not a model's name", hint=hint)
    return catalog.canonical_name(name)


def _check_models(models: tuple[tuple[str, ...], ...], vendors: tuple[str, ...]) -> None:
    if len(models) > limits.MAX_MODEL_PREFERENCES:
        raise InvalidFieldError("models", f"{len(models)} preferences; at most {limits.MAX_MODEL_PREFERENCES} are read")
    if models != canonical_models(models):
        raise InvalidFieldError("models", "not in canonical form", hint="make the request with GpuRequest.build")
    for level, names in enumerate(models):
        if len(names) > limits.MAX_MODELS_PER_SET:
            raise InvalidFieldError(f"models[{level}]", f"{len(names)} models; at most {limits.MAX_MODELS_PER_SET}")
        for name in names:
            other = catalog.vendor_of(name)
            if vendors and other not in (None, *vendors):
                raise InvalidFieldError(f"models[{level}]", f"{name} is a model of {other}, not {' or '.join(vendors)}")


def _other_vendors(owner: str, vendor: str) -> str:
    if owner == "nvidia":
        return f"MIG is NVIDIA's, not {catalog.vendor_title(vendor)}'s"
    return f"such templates are {catalog.vendor_title(owner)}'s, not {catalog.vendor_title(vendor)}'s"


def _check_range(value: object, field: str, least: int, most: int) -> None:
    # bool is an int: True would be accepted as 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidFieldError(field, f"{value!r} is not an integer")
    if not least <= value <= most:
        raise InvalidFieldError(field, f"{value} is not within {least}..{most}")
