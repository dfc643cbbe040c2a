"""The node's Prometheus endpoint: one series per device, per slice, and what enforcement did.

Values are read from the state when they are scraped, so that the series of a lease ends with the lease. What is not
known has no sample, rather than a zero. Names follow Prometheus' rules; the names of dcgm-exporter are an opt-in
(`dcgm.py`), so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot.agent.core.accounting import SliceUsage
from aliquot.agent.core.figures import FIGURES
from aliquot.agent.core.model import Actual, Holder, SliceSpec
from aliquot.agent.core.signals import XidSeverity
from aliquot.agent.processes.signals import Signaller
from aliquot.agent.state import DeviceState, NodeState
from aliquot.agent.watchdog import Watchdog
from aliquot.agent.wire import slice_percent
from aliquot.common.gauges import Labelled, counters_by, gauges_by, program_metrics
from aliquot.common.validity import Certificates

_DEVICE_LABELS = ("node", "uuid", "index", "model")
_SERVED_LABELS = ("node", "lease_id", "member")
_TOTAL = "_total"
_SLICE_LABELS = ("node", "uuid", "lease_id", "slice_id")

Value = Callable[[DeviceState], float | None]

_DEVICE_GAUGES: tuple[tuple[str, str, Value], ...] = (
    (
        "utilisation_ratio",
        "Part of the last sample period in which a kernel ran.",
        lambda d: _percent(d.load.gpu_percent),
    ),
    (
        "memory_utilisation_ratio",
        "Part of the last sample period in which device memory was read or written.",
        lambda d: _percent(d.load.memory_percent),
    ),
    (
        "activity_ratio",
        "The busiest engine's part of the time, by the best source there is.",
        lambda d: _percent(d.load.activity_percent),
    ),
    (
        "sm_active_ratio",
        "Part of the multiprocessors with work, where the device has counters.",
        lambda d: _percent(d.load.engines.sm) if d.load.engines else None,
    ),
    (
        "tensor_active_ratio",
        "Part of the time in which tensor cores worked, where the device has counters.",
        lambda d: _percent(d.load.engines.tensor) if d.load.engines else None,
    ),
    (
        "dram_active_ratio",
        "Part of the memory's bandwidth in use, where the device has counters.",
        lambda d: _percent(d.load.engines.dram) if d.load.engines else None,
    ),
    (
        "power_limit_watts",
        "What an administrator allows it to draw.",
        lambda d: None if d.load.power_limit_mw is None else d.load.power_limit_mw / 1000,
    ),
    ("memory_total_bytes", "Device memory.", lambda d: d.info.memory_total_bytes or None),
    (
        "memory_reserved_bytes",
        "Device memory that the driver keeps for itself.",
        lambda d: d.info.memory_reserved_bytes,
    ),
    ("memory_used_bytes", "Device memory used by processes.", lambda d: d.memory.used_bytes if d.memory else None),
    (
        "foreign_bytes",
        "Memory that no slice covers: of processes outside any lease, or beyond a limit.",
        lambda d: d.usage.foreign_bytes if d.usage else None,
    ),
    (
        "unattributed_bytes",
        "Memory used, but by no process that the driver lists with its memory.",
        lambda d: d.usage.unattributed_bytes if d.usage else None,
    ),
    ("temperature_celsius", "Temperature of the chip.", lambda d: d.load.temperature_c),
    (
        "memory_temperature_celsius",
        "Temperature of the device memory.",
        lambda d: d.health_sample.memory_temperature_c,
    ),
    ("power_watts", "Power drawn.", lambda d: None if d.load.power_mw is None else d.load.power_mw / 1000),
    ("sm_clock_hertz", "Clock of the multiprocessors.", lambda d: _mega(d.load.sm_clock_mhz)),
    (
        "clock_event_reasons",
        "Bits that say why the clocks are lower than they could be, as NVML names them.",
        lambda d: d.health_sample.clock_event_reasons,
    ),
    (
        "uncorrected_memory_errors",
        "Double-bit memory errors since the driver was loaded.",
        lambda d: d.health_sample.uncorrected_errors,
    ),
)

_Seen = tuple[DeviceState, SliceUsage] | None
_OF_SLICES: tuple[
    tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[SliceSpec, Actual, _Seen], float | None]],
    ...,
] = (
    (GaugeMetricFamily, "share_ratio", "Part of the device reserved.", lambda spec, *_: spec.share_milli / 1000),
    (GaugeMetricFamily, "reserved_bytes", "Memory reserved.", lambda spec, *_: spec.memory_bytes),
    (
        GaugeMetricFamily,
        "observed_bytes",
        "Memory its processes hold; absent when not known.",
        lambda _, __, seen: seen[1].observed_bytes if seen else None,
    ),
    (
        GaugeMetricFamily,
        "processes",
        "Processes on the device.",
        lambda _, __, seen: len(seen[1].uses) if seen else None,
    ),
    (
        GaugeMetricFamily,
        "utilisation_ratio",
        "Part of the device's time its processes used.",
        lambda _, __, seen: _percent(slice_percent(*seen)) if seen else None,
    ),
    (
        CounterMetricFamily,
        "energy_joules",
        "Its part of what its card has drawn, since this agent began; absent where cards don't count it.",
        lambda _, actual, __: None if actual.energy_mj is None else actual.energy_mj / 1000,
    ),
)


def gauges_of(
    prefix: str,
    table: Iterable[tuple[str, str, Value]],
    devices: Iterable[DeviceState],
    names: Sequence[str],
    labels: Callable[[DeviceState], list[str]],
) -> Iterator[Metric]:
    """A gauge for each row, of the devices of which it is known. `names` are the labels'."""
    for name, text, value in table:
        gauge = GaugeMetricFamily(f"{prefix}{name}", text, labels=names)
        for device in devices:
            if (number := value(device)) is not None:
                gauge.add_metric(labels(device), number)
        yield gauge


class NodeCollector(Collector):
    """Turns the state into metrics when asked."""

    def __init__(
        self,
        state: NodeState,
        watchdog: Watchdog,
        signaller: Signaller,
        sessions: Callable[[], int],
        calls: Callable[[], int],
        certificates: Certificates,
    ) -> None:
        self._certificates = certificates
        self._calls = calls
        self._state = state
        self._watchdog = watchdog
        self._signaller = signaller
        self._sessions = sessions

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client`. Runs in the server's thread: everything is copied before it is walked through."""
        devices = list(self._state.devices.values())
        yield from self._devices(devices, list(self._state.measured.values()))
        yield from self._slices(devices)
        yield from self._agent()

    def _devices(self, devices: list[DeviceState], measured: list[DeviceState]) -> Iterator[Metric]:
        def held(device: DeviceState) -> list[SliceSpec]:
            return [record.spec for record in self._state.reserved_on(device.info.uuid)]

        of_leasable: tuple[tuple[str, str, Value], ...] = (
            ("healthy", "1 while its agent finds nothing wrong with the device.", lambda d: int(d.health.healthy)),
            ("leases", "Leases with a slice on the device.", lambda d: len({spec.lease_id for spec in held(d)})),
            ("reserved_share_ratio", "Share reserved.", lambda d: sum(spec.share_milli for spec in held(d)) / 1000),
            ("leased_bytes", "Memory reserved by slices.", lambda d: sum(spec.memory_bytes for spec in held(d))),
        )
        for table, of in ((_DEVICE_GAUGES, [*devices, *measured]), (of_leasable, devices)):
            yield from gauges_of("aliquot_device_", table, of, _DEVICE_LABELS, self._device_labels)
        xids = CounterMetricFamily(
            "aliquot_device_xids",
            "XIDs that the driver reported, by whom they concern.",
            labels=(*_DEVICE_LABELS, "severity"),
        )
        for device in devices:
            for severity in XidSeverity:  # zeros too: a counter that begins at one has never increased
                xids.add_metric([*self._device_labels(device), severity.value], device.xids[severity])
        yield xids

    def _slices(self, devices: list[DeviceState]) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "aliquot_lease_info",
            "1 for each slice of a lease: for joining its tenant, queue and tier to other series.",
            labels=(*_SLICE_LABELS, "member", "tenant", "queue", "tier", "state"),
        )
        values = [
            (kind(f"aliquot_slice_{name}", text, labels=_SLICE_LABELS), read) for kind, name, text, read in _OF_SLICES
        ]
        seen = {
            piece.reservation.slice_id: (device, piece)
            for device in devices
            if (usage := device.usage) is not None
            for piece in usage.slices
        }
        for record in self._state.book.holding():
            spec, actual = record.spec, self._state.actual_of(record.slice_id)
            labels = [self._state.name, spec.device_uuid, spec.lease_id, spec.slice_id]
            word = actual.tier.word if actual.tier is not None else ""
            standing = "quarantined" if record.quarantined else record.intent.value
            info.add_metric([*labels, str(spec.member), spec.tenant, spec.queue, word, standing], 1)
            for family, read in values:
                if (value := read(spec, actual, seen.get(spec.slice_id))) is not None:
                    family.add_metric(labels, value)
        yield from (info, *(family for family, _ in values))

    def _agent(self) -> Iterator[Metric]:
        acts = [((act.value,), count) for act, count in list(self._watchdog.acts.items())]
        sent = [((what, how.name.lower()), count) for (what, how), count in list(self._signaller.outcomes.items())]
        breaches = [((tier.word,), count) for tier, count in list(self._watchdog.breaches.items())]
        over = (
            "Slices seen over a limit that their tier denies: managed memory, some from before an attach, or a defect."
        )
        yield self._counted("enforcement", "Decisions of the watchdog.", acts, "act")
        yield self._counted("signals", "Signals, by what became of them.", sent, "signal", "outcome")
        yield self._counted("limit_breaches", over, breaches, "tier")
        yield self._counted("sessions", "Sessions begun.", [((), self._sessions())])
        yield self._counted("driver_calls", "Calls into the driver.", [((), self._calls())])
        connected = [((self._state.name,), int(self._state.connected))]
        yield gauges_by(("node",), "aliquot_agent_connected", "1 while there is a session.", connected)
        yield from program_metrics(self._state.duties, self._certificates, {"node": self._state.name})

    def _counted(self, name: str, text: str, counts: Labelled, *labels: str) -> Metric:
        of_node = [((self._state.name, *key), count) for key, count in counts]
        return counters_by(("node", *labels), f"aliquot_agent_{name}", text, of_node)

    def _device_labels(self, device: DeviceState) -> list[str]:
        return [self._state.name, device.info.uuid, str(device.info.index), device.info.model]


class ServedCollector(Collector):
    """Series of what processes that serve leases count. Asks nobody: `figures` are those of the last health check.
    `name` is the node's.
    """

    def __init__(self, name: Callable[[], str], figures: Callable[[], Mapping[Holder, Mapping[str, int]]]) -> None:
        self._name = name
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client`. Runs in the server's thread: everything is copied before it is walked through."""
        members = list(self._figures().items())
        for key, text in FIGURES.items():
            kind = CounterMetricFamily if key.endswith(_TOTAL) else GaugeMetricFamily
            family = kind(f"aliquot_served_{key.removesuffix(_TOTAL)}", text, labels=_SERVED_LABELS)
            for holder, figures in members:
                if key in figures:
                    family.add_metric([self._name(), holder.lease_id, str(holder.member)], figures[key])
            yield family


def _percent(value: int | None) -> float | None:
    return None if value is None else value / 100


def _mega(value: int | None) -> float | None:
    return None if value is None else value * 1e6
