"""How active devices and processes are: the card's performance counters (GPM), and the driver's samples of processes.

GPM (Hopper and later) compares two samples, so that nothing between them is missed; it also works for MIG instances,
for which NVML has no rates and no samples of processes. Its first call for a device only takes the first sample.
"""

from __future__ import annotations

from ctypes import byref, c_ulonglong

import pynvml

from aliquot.agent.core.samples import Engines
from aliquot.agent.devices.nvml_query import Query

ENGINES = (
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
)
"""What is asked of the counters, in the order of the fields of `Engines`; the busiest counts."""
_QUESTION = "ProcessUtilization"


class Counters:
    """The counters of each device, with the last sample of each."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._samples: dict[str, object] = {}
        self._engines: dict[str, Engines] = {}

    def engines(self, uuid: str) -> Engines | None:
        """Of the last call of `busiest`; None: it had no answer."""
        return self._engines.get(uuid)

    def offered(self, uuid: str) -> bool:
        """Whether the device has counters, as far as is known."""
        return self._query.offers(uuid, "Gpm")

    def busiest(self, uuid: str, handle: object, parent: object | None, instance: int | None) -> int | None:
        """Percent of the busiest engine since the last call; None: not offered, or this was the first call. `parent`
        and `instance`: of a MIG instance. More than 100 % has been seen, and is 100.
        """
        self._engines.pop(uuid, None)
        if not self.offered(uuid):
            return None
        now = self._query.ask(uuid, "Gpm", self._take, handle, parent, instance)
        if now is None:
            return None
        last = self._samples.get(uuid)
        if last is None:
            self._samples[uuid] = now
            return None
        # Two samples that are too near to one another can't be compared: the older one stays.
        values = self._query.ask(uuid, "GpmMetrics", _compare, last, now)
        if values is None:
            pynvml.nvmlGpmSampleFree(now)
            return None
        self._samples[uuid] = now
        pynvml.nvmlGpmSampleFree(last)
        known = [min(100, value) for value in values if value is not None]
        if not known:
            return None
        sm, tensor, dram = (None if value is None else min(100, value) for value in values)
        self._engines[uuid] = Engines(sm, tensor, dram)
        return max(known)

    def forget(self) -> None:
        """Devices may have changed."""
        samples, self._samples = self._samples, {}
        self._engines.clear()
        for sample in samples.values():
            pynvml.nvmlGpmSampleFree(sample)

    @staticmethod
    def _take(handle: object, parent: object | None, instance: int | None) -> object:
        whole = handle if parent is None else parent
        if not pynvml.nvmlGpmQueryDeviceSupport(whole).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        sample: object = pynvml.nvmlGpmSampleAlloc()
        try:
            if parent is None or instance is None:
                pynvml.nvmlGpmSampleGet(handle, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(parent, instance, sample)
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(sample)
            raise
        return sample


def _compare(first: object, second: object) -> list[int | None]:
    """Percent of each of ENGINES; None for one that the card does not have."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(ENGINES)
    request.sample1, request.sample2 = first, second
    for number, metric in enumerate(ENGINES):
        request.metrics[number].metricId = metric
    try:
        pynvml.nvmlGpmMetricsGet(request)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA) from error
        raise
    told = (request.metrics[number] for number in range(len(ENGINES)))
    return [round(metric.value) if metric.nvmlReturn == pynvml.NVML_SUCCESS else None for metric in told]


class ProcessSamples:
    """The driver's samples of processes: each read once, by offering room for as many as there were last time."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._last_us: dict[str, int] = {}
        self._peaks: dict[str, dict[int, int] | None] = {}

    def read(self, uuid: str, handle: object) -> dict[int, int] | None:
        """The mean of each process's use of the multiprocessors since the last call; None: not offered."""
        since = self._last_us.get(uuid, 0)
        samples = self._query.ask(uuid, _QUESTION, self._call, uuid, handle, since)
        if samples is None:
            found: dict[int, int] | None = {} if self._query.offers(uuid, _QUESTION) else None
            self._peaks[uuid] = found  # nobody did anything, or nobody knows
            return found
        busy: dict[int, list[int]] = {}
        peaks: dict[int, int] = {}
        for pid, at_us, sm_percent, peak_percent in samples:
            # The driver also answers entries that it has not filled in, and some from before what was asked for.
            if pid and at_us > since and sm_percent <= 100:
                busy.setdefault(pid, []).append(sm_percent)
                peaks[pid] = max(peaks.get(pid, 0), min(100, peak_percent))
                self._last_us[uuid] = max(self._last_us.get(uuid, 0), at_us)
        self._peaks[uuid] = peaks
        return {pid: sum(values) // len(values) for pid, values in busy.items()}

    def peaks(self, uuid: str) -> dict[int, int] | None:
        """The highest sample of any engine, by process, of those that were read last."""
        return self._peaks.get(uuid)

    def _call(self, uuid: str, handle: object, since_us: int) -> list[tuple[int, int, int, int]]:
        entries = self._query.listed(
            uuid,
            "nvmlDeviceGetProcessUtilization",
            pynvml.c_nvmlProcessUtilizationSample_t,
            lambda ask, entries, count: ask(handle, entries, byref(count), c_ulonglong(since_us)),
        )
        return [
            (each.pid, each.timeStamp, each.smUtil, max(each.smUtil, each.memUtil, each.encUtil, each.decUtil))
            for each in entries
        ]
