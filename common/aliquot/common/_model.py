"""What the catalogue says of one model."""

from __future__ import annotations

from dataclasses import dataclass


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
