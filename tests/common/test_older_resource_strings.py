"""`parse_gpu_resource` reads what older platforms write, exactly, and refuses what they silently took for zero."""

from __future__ import annotations

import pytest

from aliquot.common.compat import GPUResource, parse_gpu_resource
from aliquot.common.request import RequestSyntaxError, parse_request


def fields(resource: GPUResource) -> tuple[object, ...]:
    return (
        resource.gpu_num,
        resource.gpu_type,
        resource.resource_name,
        resource.memory_gb,
        resource.compute_ratio,
    )


NVIDIA, AMD, NPU = "nvidia.com/gpu", "amd.com/gpu", "huawei.com/npu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", (2, None, NVIDIA, None, 1.0)),
        ("0.5", (0.5, None, NVIDIA, None, 0.5)),
        ("2(V100)", (2, "V100", NVIDIA, None, 1.0)),
        ("2（v100）", (2, "V100", NVIDIA, None, 1.0)),
        # Once a model called VGPU; now a word for "a part".
        ("0.5(vgpu)", (0.5, None, NVIDIA, None, 0.5)),
        ("1(nvidia,V100)", (1, "V100", NVIDIA, None, 1.0)),
        ("2(amd)", (2, None, AMD, None, 1.0)),
        ("1(MI300X)", (1, "MI300X", AMD, None, 1.0)),
        ("1(npu)", (1, None, NPU, None, 1.0)),
        ("1(A100|MI300X)", (1, "A100|MI300X", NVIDIA, None, 1.0)),
        ("8G,0.5", (0.5, None, NVIDIA, 8.0, 0.5)),
        ("1Gi,0.5", (0.5, None, NVIDIA, 1.073741824, 0.5)),
        ("1024M,0.5", (0.5, None, NVIDIA, 1.024, 0.5)),
        ("10G", (1, None, NVIDIA, 10.0, None)),
        ("4x0.25(T4)", (1, "T4", NVIDIA, None, 0.25)),
        ("2.0", (2, None, NVIDIA, None, 1.0)),
        (3, (3, None, NVIDIA, None, 1.0)),
        (0.5, (0.5, None, NVIDIA, None, 0.5)),
        ("", (0, None, NVIDIA, None, None)),
        (" 0 ", (0, None, NVIDIA, None, None)),
        (0, (0, None, NVIDIA, None, None)),
        (None, (0, None, NVIDIA, None, None)),
    ],
)
def test_an_older_string_is_read(text: str | float | None, expected: tuple[object, ...]) -> None:
    resource = parse_gpu_resource(text)
    assert fields(resource) == expected
    assert type(resource.gpu_num) is type(expected[0])


def test_the_exact_request_comes_along() -> None:
    assert parse_gpu_resource("0.25(A100),10Gi").request == parse_request("0.25(A100),10Gi")
    assert parse_gpu_resource("").request is None


def test_the_resource_name_given_holds_where_nothing_else_says() -> None:
    assert parse_gpu_resource("1", "example.com/gpu").resource_name == "example.com/gpu"
    assert parse_gpu_resource("", "example.com/gpu").resource_name == "example.com/gpu"
    assert parse_gpu_resource("1(amd)", "example.com/gpu").resource_name == AMD


@pytest.mark.parametrize("text", ["two", "1.5", "-1", "2(", "10GB", float("nan"), float("inf"), -2, 1.5])
def test_bad_input_is_refused_not_taken_for_zero(text: str | float) -> None:
    with pytest.raises(RequestSyntaxError):
        parse_gpu_resource(text)
