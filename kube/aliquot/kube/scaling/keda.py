"""KEDA's external scaler.

What it wants to be told of a ScaledObject (`GetMetricSpec`) follows from the object alone, so there is always an
answer: without one KEDA's own fallback is left out. Figures come from the last picture, also while the coordinator is
replaced. Where there is none the call fails: an empty list, or "not active", would scale down what nobody looked at.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from aliquot.common.errors import AliquotError
from aliquot.common.tls import ServerTls, is_local_address, require_secure, server_credentials
from aliquot.kube.api.errors import KubeError
from aliquot.kube.core.scaling.selectors import SelectorError
from aliquot.kube.core.scaling.signals import NotOffered
from aliquot.kube.core.scaling.triggers import Trigger, TriggerError, parse_trigger
from aliquot.kube.scaling.answers import Answers, NotYours
from aliquot.kube.scaling.following import Unknown
from aliquot.kube.scaling.protos import externalscaler_pb2 as messages
from aliquot.kube.scaling.protos import externalscaler_pb2_grpc as services

_CODES: Final[tuple[tuple[type[AliquotError], grpc.StatusCode], ...]] = (
    (TriggerError, grpc.StatusCode.INVALID_ARGUMENT),
    (SelectorError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotYours, grpc.StatusCode.PERMISSION_DENIED),
    (NotOffered, grpc.StatusCode.NOT_FOUND),
    (Unknown, grpc.StatusCode.UNAVAILABLE),
    (KubeError, grpc.StatusCode.UNAVAILABLE),
)
_MESSAGE_BYTES_MAX: Final = 64 << 10
_CALLS_MAX: Final = 2000
_NAME_TYPES: Final = ("x509_common_name", "x509_subject_alternative_name")

Context = grpc.aio.ServicerContext[Any, Any]


class Scaler(services.ExternalScalerServicer):
    """See the module's docstring. `clients` names certificates that may ask; none: all that the connection took."""

    def __init__(self, answers: Answers, clients: Sequence[str] = ()) -> None:
        self._answers = answers
        self._clients = frozenset(clients)

    async def GetMetricSpec(  # noqa: N802 - KEDA's name
        self, request: messages.ScaledObjectRef, context: Context
    ) -> messages.GetMetricSpecResponse:
        """What is measured, and its target."""
        trigger = await self._trigger(request, context)
        target = trigger.target_milli / 1000
        spec = messages.MetricSpec(metricName=trigger.metric, targetSize=max(1, round(target)), targetSizeFloat=target)
        return messages.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(  # noqa: N802
        self, request: messages.GetMetricsRequest, context: Context
    ) -> messages.GetMetricsResponse:
        """The figure."""
        trigger = await self._trigger(request.scaledObjectRef, context)
        if request.metricName != trigger.metric:
            text = f"this ScaledObject asks for {trigger.metric}, not {request.metricName[:80]!r}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        value = await self._value(request.scaledObjectRef, trigger, context) / 1000
        found = messages.MetricValue(metricName=trigger.metric, metricValue=math.ceil(value), metricValueFloat=value)
        return messages.GetMetricsResponse(metricValues=[found])

    async def IsActive(  # noqa: N802
        self, request: messages.ScaledObjectRef, context: Context
    ) -> messages.IsActiveResponse:
        """Whether there is anything to scale for."""
        trigger = await self._trigger(request, context)
        value = await self._value(request, trigger, context)
        return messages.IsActiveResponse(result=value > trigger.activation_milli)

    async def StreamIsActive(  # noqa: N802
        self, request: messages.ScaledObjectRef, context: Context
    ) -> AsyncIterator[messages.IsActiveResponse]:
        """The same whenever it changes, and at first. What is not known is not told."""
        trigger = await self._trigger(request, context)
        said: bool | None = None
        follower = self._answers.follower
        while True:
            seen = follower.rounds
            try:
                value = await self._answers.triggered(request.namespace, trigger)
            except (Unknown, KubeError):
                pass
            except AliquotError as error:
                await _refuse(context, error)
            else:
                active = value > trigger.activation_milli
                if active is not said:
                    said = active
                    yield messages.IsActiveResponse(result=active)
            async with follower.changed:
                await follower.changed.wait_for(lambda: follower.rounds != seen)  # noqa: B023 - within the round

    async def _trigger(self, reference: messages.ScaledObjectRef, context: Context) -> Trigger:
        if self._clients:
            shown = context.auth_context()
            names = {name.decode() for kind in _NAME_TYPES for name in shown.get(kind, ())}
            if not names & self._clients:
                text = f"a certificate for {', '.join(sorted(names)) or 'nobody'} may not ask here"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        try:
            trigger = parse_trigger(reference.scalerMetadata)
            self._answers.check(reference.namespace, trigger)
        except AliquotError as error:
            await _refuse(context, error)
        return trigger

    async def _value(self, reference: messages.ScaledObjectRef, trigger: Trigger, context: Context) -> int:
        try:
            return await self._answers.triggered(reference.namespace, trigger)
        except AliquotError as error:
            await _refuse(context, error)


async def _refuse(context: Context, error: AliquotError) -> NoReturn:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    text = f"{error.message} ({error.hint})" if error.hint else error.message
    await context.abort(code, text)


async def serve(scaler: Scaler, address: str, tls: ServerTls | None) -> tuple[grpc.aio.Server, int]:
    """Serve; returns the server, and its port. Raises SecurityError, and ConfigError where anybody could ask."""
    require_secure(address, tls)
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )
    services.add_ExternalScalerServicer_to_server(scaler, server)
    if tls is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, server_credentials(tls))
    await server.start()
    return server, port


def must_know_callers(address: str, tls: ServerTls | None) -> bool:
    """Whether it must be known who asks, and is not: namespaces are what the caller says they are."""
    return not is_local_address(address) and (tls is None or tls.client_ca_file is None)
