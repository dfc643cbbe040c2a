"""KEDA as an external scaler meets it: a client made of the messages that it publishes, and not of our own stubs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _INT64, _DOUBLE, _BOOL, _MESSAGE = 9, 3, 1, 8, 11
_OPTIONAL, _REPEATED = 1, 3
_PUBLISHED: dict[str, list[tuple[str, int, int, int, str]]] = {
    "ScaledObjectRef": [
        ("name", 1, _STRING, _OPTIONAL, ""),
        ("namespace", 2, _STRING, _OPTIONAL, ""),
        ("scalerMetadata", 3, _MESSAGE, _REPEATED, "ScaledObjectRef.ScalerMetadataEntry"),
    ],
    "IsActiveResponse": [("result", 1, _BOOL, _OPTIONAL, "")],
    "GetMetricSpecResponse": [("metricSpecs", 1, _MESSAGE, _REPEATED, "MetricSpec")],
    "MetricSpec": [
        ("metricName", 1, _STRING, _OPTIONAL, ""),
        ("targetSize", 2, _INT64, _OPTIONAL, ""),
        ("targetSizeFloat", 3, _DOUBLE, _OPTIONAL, ""),
    ],
    "GetMetricsRequest": [
        ("scaledObjectRef", 1, _MESSAGE, _OPTIONAL, "ScaledObjectRef"),
        ("metricName", 2, _STRING, _OPTIONAL, ""),
    ],
    "GetMetricsResponse": [("metricValues", 1, _MESSAGE, _REPEATED, "MetricValue")],
    "MetricValue": [
        ("metricName", 1, _STRING, _OPTIONAL, ""),
        ("metricValue", 2, _INT64, _OPTIONAL, ""),
        ("metricValueFloat", 3, _DOUBLE, _OPTIONAL, ""),
    ],
}


def _fields(message: Any, fields: list[tuple[str, int, int, int, str]]) -> None:
    for name, number, type_, label, of in fields:
        field = message.field.add(name=name, number=number, type=type_, label=label)
        if of:
            field.type_name = f".externalscaler.{of}"


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="keda.proto", package="externalscaler", syntax="proto3")
    for name, fields in _PUBLISHED.items():
        message = file.message_type.add(name=name)
        _fields(message, fields)
        if name == "ScaledObjectRef":
            entry = message.nested_type.add(name="ScalerMetadataEntry")
            entry.options.map_entry = True
            _fields(entry, [("key", 1, _STRING, _OPTIONAL, ""), ("value", 2, _STRING, _OPTIONAL, "")])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"externalscaler.{name}") for name in _PUBLISHED}
    return {name: message_factory.GetMessageClass(one) for name, one in found.items()}


MESSAGES = _messages()
_METHODS = {
    "IsActive": ("ScaledObjectRef", "IsActiveResponse"),
    "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse"),
    "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse"),
}


class Keda:
    """One trigger of one ScaledObject, handled as KEDA 2.20 does."""

    def __init__(self, channel: grpc.aio.Channel, namespace: str = "default", **metadata: str) -> None:
        self._channel = channel
        self.reference = MESSAGES["ScaledObjectRef"](
            name="scaled", namespace=namespace, scalerMetadata={"scalerAddress": "scaler:8761", **metadata}
        )

    async def call(self, method: str, message: Any) -> Any:
        """One call. Raises AioRpcError."""
        asks, answers = _METHODS[method]
        call: Any = self._channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=MESSAGES[asks].SerializeToString,
            response_deserializer=MESSAGES[answers].FromString,
        )
        return await call(message, timeout=20)

    async def spec(self) -> tuple[str, float]:
        """Name and target of the one metric."""
        (found,) = (await self.call("GetMetricSpec", self.reference)).metricSpecs
        assert found.targetSize >= 1
        return found.metricName, found.targetSizeFloat or found.targetSize

    async def value(self, name: str = "") -> float:
        """The metric, as the HPA that KEDA makes sees it."""
        request = MESSAGES["GetMetricsRequest"](
            scaledObjectRef=self.reference, metricName=name or (await self.spec())[0]
        )
        (found,) = (await self.call("GetMetrics", request)).metricValues
        assert found.metricValue >= found.metricValueFloat
        return float(found.metricValueFloat if found.metricValueFloat > 0 else found.metricValue)

    async def active(self) -> bool:
        """Whether to scale from zero."""
        return bool((await self.call("IsActive", self.reference)).result)

    async def stream(self) -> AsyncGenerator[bool, None]:
        """The same, pushed."""
        call: Any = self._channel.unary_stream(
            "/externalscaler.ExternalScaler/StreamIsActive",
            request_serializer=MESSAGES["ScaledObjectRef"].SerializeToString,
            response_deserializer=MESSAGES["IsActiveResponse"].FromString,
        )
        async for message in call(self.reference):
            yield bool(message.result)
