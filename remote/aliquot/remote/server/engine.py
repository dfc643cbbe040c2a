"""One session's frames, done in order on the lease's device.

After an operator fails nothing more is done, except that what the client lets go is let go, until the client resumes:
by then its program has been told, and what it had sent ahead is void. So memory is as it was at the moment of the
error, as it would be had the program run there.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from aliquot.remote import operators
from aliquot.remote.core import language, messages
from aliquot.remote.core.accounting import Budget, OutOfMemory
from aliquot.remote.core.bounds import DEFINITIONS_BYTES_MAX, GRAPHS_MAX, PROTOCOL, TEMPLATES_MAX
from aliquot.remote.core.channel import FRAME_BYTES_MAX, Engine, EngineFactory
from aliquot.remote.core.language import MessageError
from aliquot.remote.core.layouts import LayoutError
from aliquot.remote.core.messages import DATA_HEADER, Kind
from aliquot.remote.core.words import FREE, REPLAY, TEMPLATES_FROM, StreamError, unpack
from aliquot.remote.server.blobs import Blobs
from aliquot.remote.server.executor import Executable, Refusal, TemplateError
from aliquot.remote.server.graphs import Graphs
from aliquot.remote.server.memory import keep_freed
from aliquot.remote.server.randomness import Generator
from aliquot.remote.server.store import HandleError, MispredictedError, Store

_CHUNK_BYTES = FRAME_BYTES_MAX - 64


@dataclass(frozen=True, slots=True)
class Settings:
    """What a lease's server serves.

    Raises:
        ValueError: a device that PyTorch doesn't know.
    """

    device: str = "cpu"
    """`cpu`, or `cuda` with an index, as this process sees it."""
    memory_bytes: int = 1 << 40
    seed: int = 0
    threads: int | None = None
    """Of one operator on a CPU. PyTorch keeps this by thread, so each engine sets its own. None: as PyTorch likes."""
    blobs_bytes: int = 1 << 30
    blobs: Blobs | None = field(default=None, compare=False)
    budget: Budget | None = field(default=None, compare=False)
    """Of the part, where its sessions share one; None: each session has `memory_bytes` to itself."""


def engine_factory(settings: Settings) -> EngineFactory:
    """Makes the engines of a lease's sessions; they share the tenant's contents and nothing else."""
    blobs = settings.blobs or Blobs(settings.blobs_bytes)
    device = torch.device(settings.device)
    if device.type == "cpu":
        keep_freed()

    def make(answer: Callable[[bytes], None]) -> Engine:
        return TorchEngine(answer, settings, device, blobs)

    return make


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (OutOfMemory, "out_of_memory"),
    (torch.OutOfMemoryError, "out_of_memory"),
    (MemoryError, "out_of_memory"),
    (operators.NotAllowed, "not_allowed"),
    (HandleError, "dropped"),
    (MispredictedError, "mispredicted"),
    (LayoutError, "malformed"),
    (TemplateError, "malformed"),
    (StreamError, "malformed"),
    (MessageError, "malformed"),
    (torch.linalg.LinAlgError, "linalg"),  # type: ignore[attr-defined]
    (IndexError, "index"),
    (NotImplementedError, "not_implemented"),
    (TypeError, "type"),
    (ValueError, "value"),
)


_NUMBERS = {
    messages.Template: range(TEMPLATES_FROM, TEMPLATES_MAX),
    messages.Graph: range(GRAPHS_MAX),
    messages.Record: range(1 << 32),
}
"""What definitions may be called."""


class TorchEngine:
    """The engine of one session."""

    def __init__(self, answer: Callable[[bytes], None], settings: Settings, device: torch.device, blobs: Blobs) -> None:
        self._answer = answer
        self._device = device
        self._threads = settings.threads
        self.store = Store(settings.budget or settings.memory_bytes)
        """What the session holds."""
        self._seed = settings.seed
        self._generator = Generator(device, settings.seed)
        self._templates: dict[int, Executable | Refusal] = {}
        self._defined: dict[tuple[type, int], int] = {}
        self._defined_bytes = 0
        self._blobs = blobs
        self._graphs = Graphs(self.store, device, self._generator)
        self._recordings: dict[int, tuple[list[int], list[int]]] = {}
        """Captured steps: their words, and the allocations that they make anew each time."""
        self._welcomed = False
        self._fault = 0
        self._faults = 0
        self._operators = 0
        self._waits = 0
        self._timed = False
        self._busy_s = self._within_s = self._device_s = 0.0
        """In frames altogether; of that in operators, where somebody wants to know; and waiting for the device."""
        self._of_bytes: dict[int, Callable[[bytes], None]] = {
            Kind.OPERATORS: self._run_operators,
            Kind.DATA: self._data,
        }
        self._of_messages: dict[type[msgspec.Struct], Callable[[Any], None]] = {
            messages.Hello: self._hello,
            messages.Template: self._define,
            messages.Call: self._call,
            messages.Fetch: self._fetch,
            messages.Resume: self._resume,
            messages.Mark: self._mark,
            messages.Seed: self._set_seed,
            messages.Random: self._random,
            messages.Record: self._record,
            messages.Hashed: self._hashed,
            messages.Blob: self._blob,
            messages.Graph: self._graph,
        }

    def handle(self, frame: bytes) -> None:
        """Do what a frame says. Errors of its content are answered, never raised."""
        began_s = time.perf_counter()
        with torch.inference_mode():
            try:
                self._do(frame)
            except Exception as error:  # noqa: BLE001 - whatever a client's frame makes PyTorch raise is the client's
                self._fail(error, "", 0)
        self._busy_s += time.perf_counter() - began_s

    def _do(self, frame: bytes) -> None:
        of_bytes = self._of_bytes.get(frame[0]) if frame else None
        if of_bytes is not None and self._welcomed:
            of_bytes(frame)
            return
        message = messages.decode(frame)
        do = self._of_messages.get(type(message))
        if do is None or (not self._welcomed and not isinstance(message, messages.Hello)):
            raise MessageError("no such message, or the session was not opened")
        do(message)

    def figures(self) -> dict[str, int]:
        """For the metrics of the lease: operators done, results that were asked for, bytes held."""
        return {"ops": self._operators, "waits": self._waits, "memory_bytes": self.store.account.used_bytes}

    def close(self) -> None:
        """Free everything."""
        self._templates.clear()
        self._recordings.clear()
        self._graphs.clear()
        self.store.clear()
        self._generator.close()

    # ------------------------------------------------------------------------------------------------------ faults

    def _send(self, message: msgspec.Struct) -> None:
        self._answer(language.encode(message))

    def _fail(self, error: BaseException, operator: str, site: int) -> None:
        if self._fault:
            return
        self._faults += 1
        self._fault = self._faults
        account = self.store.account
        asked = error.asked_bytes if isinstance(error, OutOfMemory) else 0
        reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "operator")
        text = str(error).split("\n\nException raised from")[0][:4000] or type(error).__name__
        if operator and reason == "index" and text == "list index out of range":
            reason, text = "malformed", "the stream of operators ends within one"
        used = account.budget.used_bytes
        self._send(messages.Fault(self._fault, reason, text, operator, site, asked, used, account.limit_bytes))

    def _resume(self, message: messages.Resume) -> None:
        if message.fault == self._fault:
            self._fault = 0

    # --------------------------------------------------------------------------------------------------- the stream

    def _hello(self, message: messages.Hello) -> None:
        own, here = operators.digest(), str(torch.__version__)
        refusal = ""
        if message.protocol != PROTOCOL:
            refusal = (
                f"the client speaks version {message.protocol}, this server {PROTOCOL}: "
                "install the same version of aliquot on both ends"
            )
        elif message.operators != own and message.torch.split("+")[0] != here.split("+", maxsplit=1)[0]:
            refusal = (
                f"the client has PyTorch {message.torch[:40]}, this server {here}, and their operators differ: "
                "install the same version on both ends"
            )
        if refusal:
            self._send(messages.Refused(refusal, PROTOCOL, here))
            return
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        self._welcomed = True
        limit_bytes = self.store.account.limit_bytes
        self._send(messages.Welcome(PROTOCOL, here, self._device.type, limit_bytes, own, self._seed))

    def _define(self, template: messages.Template) -> None:
        self._templates.pop(template.number, None)
        self._count(template)
        try:
            self._templates[template.number] = self._graphs.executable(template) or Executable(
                template, self.store, self._device
            )
        except Exception as error:  # noqa: BLE001 - one bad template must not end what other operators do
            self._templates[template.number] = Refusal(template, error)

    def _count(self, defined: messages.Template | messages.Graph | messages.Record) -> None:
        """Count the bytes of a definition in place of the one that had its number.

        Raises:
            TemplateError: it can't have that number, or the session's definitions would pass their bound.
        """
        kind, number, size = type(defined), defined.number, len(language.encode(defined))
        if number not in _NUMBERS[kind]:
            raise TemplateError(f"a {kind.__name__} can't have the number {number}")
        total = self._defined_bytes - self._defined.get((kind, number), 0) + size
        if total > DEFINITIONS_BYTES_MAX:
            raise TemplateError(
                f"the session's operators, graphs and captured steps would pass {DEFINITIONS_BYTES_MAX} bytes: "
                "reset() captured steps that are not needed any more"
            )
        self._defined[kind, number], self._defined_bytes = size, total

    def _run_operators(self, frame: bytes) -> None:
        self._run_words(unpack(frame[1], memoryview(frame)[2:]), 0)

    def _run_words(self, words: list[int], depth: int) -> None:
        templates, store, generator = self._templates, self.store, self._generator
        at, end = 0, len(words)
        while at < end:
            number = words[at]
            if number == FREE:
                store.free(words[at + 1])
                at += 2
                continue
            if number == REPLAY:
                if not self._fault and not depth:
                    self._replay(words[at + 2], words[at + 1])
                at += 3
                continue
            executable = templates.get(number)
            if executable is None:
                # Its width is not known, so neither is where the next one begins.
                self._fail(TemplateError(f"template {number} was never defined"), "", 0)
                return
            if not self._fault:
                try:
                    if self._timed:
                        self._run_timed(executable, words, at)
                    else:
                        executable.run(words, at, store, generator)
                    self._operators += 1
                except Exception as error:  # noqa: BLE001 - PyTorch raises what it likes
                    self._fail(error, executable.operator, words[at + 1] if at + 1 < end else 0)
            at += executable.width

    def _run_timed(self, executable: Executable | Refusal, words: list[int], at: int) -> None:
        began_s = time.perf_counter()
        try:
            executable.run(words, at, self.store, self._generator)
        finally:
            self._within_s += time.perf_counter() - began_s

    # ----------------------------------------------------------------------------------------------------- requests

    def _call(self, message: messages.Call) -> None:
        self._waits += 1
        if not self._fault:
            try:
                executable = Executable(message.template, self.store, self._device)
                self.store.account.require(executable.foreseen_bytes(message.words, 0, self.store))
                returned = executable.call(message.words, 0, self.store, self._generator)
                self._send(messages.Reply(message.request, self._values(returned, message.handles)))
                self._operators += 1
                return
            except Exception as error:  # noqa: BLE001 - PyTorch raises what it likes
                self._fail(error, message.template.operator, message.site)
        self._send(messages.Reply(message.request, fault=self._fault))

    def _values(self, returned: object, handles: list[int]) -> list[messages.Value]:
        """What a call returned, new tensors held by the handles given for them: all of them, or none."""
        items = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        free = iter(handles)
        values: list[messages.Value] = []
        held: list[int] = []
        try:
            for item in items:
                if isinstance(item, torch.Tensor):
                    tensor = item.resolve_conj().resolve_neg().contiguous()
                    layout = self.store.layouts.of_tensor(tensor)
                    handle = next(free, None)
                    if handle is None:
                        raise TemplateError("more tensors were made than handles given")
                    self.store.check_free(handle)
                    if tensor is item or tensor.untyped_storage().nbytes() != layout.extent_bytes:
                        tensor = tensor.clone()
                    self.store.put(handle, tensor, layout)
                    held.append(handle)
                    values.append(messages.Value(handle, layout.dtype, layout.shape, layout.stride))
                elif item is None or isinstance(item, (bool, int, float, str)):
                    values.append(messages.Value(plain=item))
                else:
                    raise TemplateError(f"a value of type {type(item).__name__} can't be returned")
        except BaseException:
            for handle in held:
                self.store.free(handle)
            raise
        return values

    def _data(self, frame: bytes) -> None:
        if self._fault:
            return
        _, handle, offset = DATA_HEADER.unpack_from(frame)
        self.store.get(handle).write(offset, memoryview(frame)[DATA_HEADER.size :])

    def _fetch(self, message: messages.Fetch) -> None:
        self._waits += 1
        if not self._fault:
            try:
                layout = self.store.layouts.of(message.dtype, message.shape, message.stride)
                view = self.store.get(message.handle).view(layout, message.offset)
                size_bytes = view.numel() * layout.item_bytes
                if size_bytes > max(self.store.account.limit_bytes, 1 << 20):
                    raise LayoutError(f"a view of {size_bytes} bytes is more than the lease's memory")
                began_s = time.perf_counter()
                here = view.contiguous().cpu()
                self._device_s += time.perf_counter() - began_s
                start = here.data_ptr()
                for offset in range(0, size_bytes, _CHUNK_BYTES):
                    part = ctypes.string_at(start + offset, min(_CHUNK_BYTES, size_bytes - offset))
                    self._answer(DATA_HEADER.pack(Kind.CHUNK, message.request, offset) + part)
                self._send(messages.Reply(message.request, size_bytes=size_bytes))
                return
            except Exception as error:  # noqa: BLE001 - asynchronous errors of the device surface here
                self._fail(error, "fetch", message.site)
        self._send(messages.Reply(message.request, fault=self._fault))

    def _mark(self, message: messages.Mark) -> None:
        numbers: dict[str, int] = {}
        if message.reset_peak:
            self.store.account.peak_bytes = self.store.account.used_bytes
        if message.statistics:
            began_s = time.perf_counter()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._device_s += time.perf_counter() - began_s
            account = self.store.account
            numbers = {
                "used_bytes": account.used_bytes,
                "peak_bytes": account.peak_bytes,
                "limit_bytes": account.limit_bytes,
                "part_used_bytes": account.budget.used_bytes,
                "allocations": account.allocations,
                "templates": len(self._templates),
                "operators": self._operators,
                "busy_us": int(self._busy_s * 1e6),
                "within_us": int(self._within_s * 1e6),
                "device_us": int(self._device_s * 1e6),
            }
            self._timed = self._timed or message.timed
        self._send(messages.Reply(message.request, fault=self._fault, numbers=numbers))

    def _set_seed(self, message: messages.Seed) -> None:
        if not self._fault:
            self._generator.seed(message.seed)

    def _random(self, message: messages.Random) -> None:
        if self._fault:
            self._send(messages.Reply(message.request, fault=self._fault))
            return
        if message.state is not None:
            self._generator.set_state(message.state)
            self._send(messages.Reply(message.request))
            return
        state = self._generator.state()
        self._answer(DATA_HEADER.pack(Kind.CHUNK, message.request, 0) + state)
        self._send(messages.Reply(message.request, size_bytes=len(state)))

    # ------------------------------------------------------------------------------- steps, graphs, contents by hash

    def _record(self, message: messages.Record) -> None:
        if not self._fault and message.words:
            words = unpack(message.width, message.words)
            self._count(message)
            self._recordings[message.number] = (words, message.kept)
        elif not self._fault and message.number in self._recordings:
            del self._recordings[message.number]
            self._count(message)
        self._send(messages.Reply(message.request, fault=self._fault))

    def _replay(self, number: int, site: int) -> None:
        found = self._recordings.get(number)
        if found is None:
            self._fail(StreamError(f"there is no captured step {number}"), "replay", site)
            return
        words, kept = found
        for handle in kept:
            self.store.free(handle)
        self._run_words(words, 1)

    def _graph(self, message: messages.Graph) -> None:
        if not self._fault:
            self._count(message)
            self._graphs.put(message)

    def _hashed(self, message: messages.Hashed) -> None:
        missing: list[int] = []
        if not self._fault:
            for place, (handle, digest) in enumerate(message.items):
                content = self._blobs.get(digest)
                allocation = self.store.get(handle)
                if content is None or len(content) != allocation.number_bytes:
                    missing.append(place)
                else:
                    allocation.write(0, memoryview(content))
        self._send(messages.Reply(message.request, missing=missing, fault=self._fault))

    def _blob(self, message: messages.Blob) -> None:
        if self._fault:
            return
        allocation = self.store.get(message.handle)
        whole = torch.empty(0, dtype=torch.uint8, device=self._device)
        whole.set_(allocation.tensor.untyped_storage(), 0, (allocation.number_bytes,), (1,))
        here = whole.cpu()
        if not self._blobs.put(message.digest, ctypes.string_at(here.data_ptr(), here.numel())):
            raise MessageError(f"the content's SHA-256 is not {message.digest[:32].hex()}")
