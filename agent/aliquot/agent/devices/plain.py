"""What most drivers don't offer, said once. A backend says what its own does."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from aliquot.agent.core.samples import DeviceEvent, DeviceInfo, HealthSample, LoadSample
from aliquot.agent.devices.base import Geometry
from aliquot.agent.enforce.base import Cgroups, Enforcer


class PlainBackend:
    """Devices that can't be cut by us, have no tier of their own, and tell nothing by themselves. See
    `base.DeviceBackend`.
    """

    @property
    def geometry(self) -> Geometry | None:
        """They can't be cut."""
        return None

    def close(self) -> None:
        """Nothing is held."""

    def unusable(self, device: DeviceInfo) -> str:
        """Nothing is known without asking."""
        return ""

    def enforcers(self, cgroups: Cgroups) -> Iterable[tuple[str, Enforcer]]:
        """No tier is the vendor's own."""
        return ()

    def probe(self, device: DeviceInfo) -> Sequence[str]:
        """There is no program that takes their memory without the vendor's software, or nothing to prove."""
        return ()

    def load(self, uuid: str) -> LoadSample:
        """Not told."""
        return LoadSample()

    def process_load(self, uuid: str) -> Mapping[int, int] | None:
        """Not told."""
        return None

    def process_peaks(self, uuid: str) -> Mapping[int, int] | None:
        """Not told."""
        return None

    def health(self, uuid: str) -> HealthSample:
        """Not told."""
        return HealthSample()

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        """Their drivers are asked; they do not call."""
        threading.Event().wait(timeout_ms / 1000)
        return ()

    def deaf(self) -> str:
        """They are asked in turns, so nothing is missed."""
        return ""
