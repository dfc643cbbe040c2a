"""Several kinds of devices behind one protocol: a node may have cards of different vendors.

Each kind has a thread of its own for what concerns all of its devices (opening, discovery, events), so that one whose
driver hangs or whose library is broken takes nothing from the others. Such a kind is told as not answering
(`Discovery.kinds`), and opened again at every discovery; what is asked of a device of it fails meanwhile, as of any
device that does not answer. A library that may take its process along is first tried in a child.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.partitioning import Instance, Profile, Recut
from aliquot.agent.core.samples import (
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
)
from aliquot.agent.devices.base import BackendUnavailable, DeviceBackend, DeviceError, Discovery, Geometry, there
from aliquot.agent.enforce.base import Cgroups, Enforcer

T = TypeVar("T")

log = logging.getLogger(__name__)

KIND_TIMEOUT_S = 20.0
"""For what concerns all devices of a kind. Less than the agent waits for all kinds together."""
EVENTS_SLACK_S = 1.0
INDEX_STEP = 100
"""Devices and islands of each kind are numbered from a multiple of it, whether or not the other kinds answer."""
_TRY = "import sys; from aliquot.agent.devices.kinds import try_kind; try_kind(sys.argv[1])"


def try_in_child(spec: str) -> str:
    """Open a kind of devices in a process of its own: empty, or why that did not end well. Takes up to 20 s."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words only
            [sys.executable, "-c", _TRY, spec],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=KIND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"trying it in a process of its own did not end: {error}"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"its library ends the process that loads it (signal {-done.returncode}): repair or remove the driver"
    return (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2] or f"it ended with {done.returncode}"


class Kind(msgspec.Struct):
    """One kind, and how it stands."""

    name: str
    make: Callable[[], DeviceBackend]
    first: Callable[[], str] = lambda: ""
    """Called before the backend is made: empty, or why that must not be done here."""
    backend: DeviceBackend | None = None
    """Open; None: it does not answer."""
    problem: str = "not tried yet"
    driver: DriverInfo = msgspec.field(default_factory=lambda: DriverInfo("", ""))
    pending: Future[object] | None = None
    """A call that has not come back."""

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Have it done by a thread that ends with the process."""
        future = _aside(f"devices of {self.name}", call)
        self.pending = future  # type: ignore[assignment]
        return future

    def busy(self) -> bool:
        """Whether a call of earlier is still under way."""
        return self.pending is not None and not self.pending.done()


class SeveralKinds:
    """See `base.DeviceBackend`."""

    def __init__(self, kinds: Sequence[Kind], timeout_s: float = KIND_TIMEOUT_S) -> None:
        self.name = "+".join(kind.name for kind in kinds)
        self.geometry = _Geometries(self)
        self._kinds = tuple(kinds)
        self._timeout_s = timeout_s
        self._of: dict[str, Kind] = {}
        self._events: dict[str, Future[Sequence[DeviceEvent]]] = {}

    @property
    def calls(self) -> int:
        """Of all kinds."""
        return sum(kind.backend.calls for kind in self._kinds if kind.backend is not None)

    def open(self) -> DriverInfo:
        """Open every kind. Raises `BackendUnavailable` where not one of them answers."""
        self._each([kind for kind in self._kinds if kind.backend is None], self._opened)
        if all(kind.backend is None for kind in self._kinds):
            raise BackendUnavailable(
                "; ".join(f"{kind.name}: {kind.problem}" for kind in self._kinds),
                hint="install the driver of this node's devices, or name their kinds in the setting `devices`",
            )
        return self._driver()

    def close(self) -> None:
        """Let go of every driver that answers."""
        for kind in self._kinds:
            backend, kind.backend = kind.backend, None
            if backend is not None and not kind.busy():
                backend.close()

    def discover(self) -> Discovery:
        """Every device of every kind that answers; those that don't are tried again first."""
        self._each([kind for kind in self._kinds if kind.backend is None], self._opened)
        there = [kind for kind in self._kinds if kind.backend is not None]
        found = self._each(there, lambda kind: _open(kind).discover())
        devices: dict[str, DeviceInfo] = {}
        measured: list[DeviceInfo] = []
        problems = [f"{kind.name}: {kind.problem}" for kind in self._kinds if kind.problem]
        for number, kind in enumerate(self._kinds):
            if kind.name not in found:
                continue
            own = found[kind.name]
            for info in own.devices:
                if info.uuid in devices:
                    problems.append(f"{kind.name}: {info.uuid} is listed by another kind already")
                else:
                    devices[info.uuid] = _apart(info, number * INDEX_STEP)
                    self._of[info.uuid] = self._of[info.physical_uuid] = kind
            for card in own.cards:
                self._of[card.uuid] = kind
            for info in own.measured:
                self._of[info.uuid] = kind
                measured.append(_apart(info, number * INDEX_STEP))
        answers = list(found.values())
        return Discovery(
            tuple(devices.values()),
            (*problems, *(text for each in answers for text in each.problems)),
            tuple(card for each in answers for card in each.cards),
            tuple(text for each in answers for text in each.card_problems),
            tuple(text for each in answers for text in each.unleasable),
            tuple(measured),
            tuple(text for each in answers for text in each.untold),
            {kind.name: kind.problem for kind in self._kinds},
        )

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """What each kind says of its own."""
        result: dict[str, str] = {}
        for kind in self._kinds:
            own = [device for device in devices if self._of.get(device.uuid) is kind]
            if own and kind.backend is not None:
                result |= kind.backend.visibility(own)
        return result

    def unusable(self, device: DeviceInfo) -> str:
        """What its kind says."""
        kind = self._of.get(device.uuid)
        if kind is None:
            return f"no kind of devices has {device.uuid}"
        return kind.problem if kind.backend is None else kind.backend.unusable(device)

    def enforcers(self, cgroups: Cgroups) -> Iterable[tuple[str, Enforcer]]:
        """Those of the kinds that have answered; those of others join them once these answer."""
        return _Own(self._kinds, cgroups)

    def probe(self, device: DeviceInfo) -> Sequence[str]:
        """Its kind's."""
        return self.of(device.uuid).probe(device)

    def memory(self, uuid: str) -> MemorySample:
        """Of its kind."""
        return self.of(uuid).memory(uuid)

    def processes(self, uuid: str) -> ProcessList:
        """Of its kind."""
        return self.of(uuid).processes(uuid)

    def load(self, uuid: str) -> LoadSample:
        """Of its kind."""
        return self.of(uuid).load(uuid)

    def process_load(self, uuid: str) -> Mapping[int, int] | None:
        """Of its kind."""
        return self.of(uuid).process_load(uuid)

    def process_peaks(self, uuid: str) -> Mapping[int, int] | None:
        """Of its kind."""
        return self.of(uuid).process_peaks(uuid)

    def health(self, uuid: str) -> HealthSample:
        """Of its kind."""
        return self.of(uuid).health(uuid)

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        """What any kind reports. One that does not come back is left alone until it has."""
        for kind in self._kinds:
            backend = kind.backend
            if backend is not None and kind.name not in self._events:
                wait = partial(backend.wait_events, timeout_ms)
                self._events[kind.name] = _aside(f"events of {kind.name}", wait)
        if not self._events:
            threading.Event().wait(timeout_ms / 1000)
        heard: list[DeviceEvent] = []
        problems: list[str] = []
        for name, future in list(self._events.items()):
            try:
                heard += future.result(timeout_ms / 1000 + EVENTS_SLACK_S)
            except NotYet:
                continue
            except Exception as error:  # noqa: BLE001 - a vendor's library may raise anything
                problems.append(f"{name}: {_told(error)}")
            del self._events[name]
        if problems and not heard:
            raise DeviceError("; ".join(problems))
        return heard

    def deaf(self) -> str:
        """Of any kind."""
        told = ((kind.name, kind.backend.deaf()) for kind in self._kinds if kind.backend is not None)
        return "; ".join(f"{name}: {why}" for name, why in told if why)

    def of(self, uuid: str) -> DeviceBackend:
        """The backend of a device or a card. Raises `DeviceError`."""
        return _open(there(self._of, uuid))

    def _opened(self, kind: Kind) -> None:
        problem = kind.first()
        if problem:
            raise BackendUnavailable(problem)
        backend = kind.make()
        kind.driver = backend.open()
        kind.backend = backend

    def _each(self, kinds: Sequence[Kind], call: Callable[[Kind], T]) -> dict[str, T]:
        """By kind, what came of it in time. What did not is told in the kind's `problem`."""
        begun: list[tuple[Kind, Future[T]]] = []
        for kind in kinds:
            if kind.busy():
                kind.problem = "a call to its driver has not come back"
            else:
                begun.append((kind, kind.begin(partial(call, kind))))
        found: dict[str, T] = {}
        for kind, future in begun:
            before = kind.problem
            try:
                found[kind.name] = future.result(self._timeout_s)
                kind.problem = ""
            except NotYet:
                kind.problem = f"its driver has not answered within {self._timeout_s:g} s"
            except Exception as error:  # noqa: BLE001 - a vendor's library may raise anything
                kind.problem = _told(error)
            if kind.problem and kind.problem != before:
                log.error("devices of kind %s: %s", kind.name, kind.problem)
        return found

    def _driver(self) -> DriverInfo:
        there = [kind for kind in self._kinds if kind.backend is not None]
        cuda = next((kind.driver.cuda_version for kind in there if kind.driver.cuda_version), None)
        return DriverInfo(
            "; ".join(f"{kind.name} {kind.driver.driver_version}" for kind in there),
            "; ".join(f"{kind.name} {kind.driver.library_version}" for kind in there if kind.driver.library_version),
            cuda,
        )


class _Own(Iterable[tuple[str, Enforcer]]):
    """The tiers of all kinds that have answered so far."""

    def __init__(self, kinds: Sequence[Kind], cgroups: Cgroups) -> None:
        self._kinds = kinds
        self._cgroups = cgroups
        self._made: dict[str, Iterable[tuple[str, Enforcer]]] = {}

    def __iter__(self) -> Iterator[tuple[str, Enforcer]]:
        for kind in self._kinds:
            if kind.name not in self._made and kind.backend is not None:
                self._made[kind.name] = kind.backend.enforcers(self._cgroups)
        for made in self._made.values():
            yield from made


class _Geometries:
    """Each card is cut by its kind."""

    def __init__(self, several: SeveralKinds) -> None:
        self._several = several

    def read_instances(self, uuid: str, profiles: Collection[Profile]) -> tuple[Instance, ...]:
        """See `base.Geometry`."""
        return self._of(uuid).read_instances(uuid, profiles)

    def apply(self, uuid: str, recut: Recut) -> None:
        """See `base.Geometry`."""
        self._of(uuid).apply(uuid, recut)

    def _of(self, uuid: str) -> Geometry:
        backend = self._several.of(uuid)
        if backend.geometry is None:
            raise DeviceError(f"{backend.name} can't cut {uuid}")
        return backend.geometry


def _open(kind: Kind) -> DeviceBackend:
    if kind.backend is None:
        raise DeviceError(f"{kind.name}: {kind.problem}")
    return kind.backend


def _apart(info: DeviceInfo, first: int) -> DeviceInfo:
    """A device with numbers that no other kind has: no link leads from one kind to another."""
    island = None if info.fabric_island is None else info.fabric_island + first
    return replace(info, index=info.index + first, fabric_island=island)


def _aside(name: str, call: Callable[[], T]) -> Future[T]:
    """In a thread that ends with the process."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - a vendor's library may raise anything
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _told(error: BaseException) -> str:
    """What went wrong, for people: a vendor's library may raise anything."""
    return error.message if isinstance(error, DeviceError) else f"{type(error).__name__}: {error}"
