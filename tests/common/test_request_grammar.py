"""What the request grammar accepts, and that every request has one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import InvalidFieldError
from aliquot.common.limits import GIB, MAX_SLICE_MEMORY_BYTES
from aliquot.common.request import GpuRequest, format_request, parse_request
from tests.common.strategies import requests

V100, A100, H100 = (("V100",),), (("A100",),), (("H100",),)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("2", GpuRequest(2, 1000)),
        ("0.5", GpuRequest(1, 500)),
        ("2(V100)", GpuRequest(2, 1000, models=V100)),
        ("1(nvidia,V100)", GpuRequest(1, 1000, models=V100, vendor="nvidia")),
        ("2(amd)", GpuRequest(2, 1000, vendor="amd")),
        ("8G,0.5", GpuRequest(1, 500, 8 * 10**9)),
        ("0.25(A100),10Gi", GpuRequest(1, 250, 10 * GIB, models=A100)),
        ("2x0.5(A100|H100),20Gi", GpuRequest(2, 500, 20 * GIB, models=(("A100", "H100"),))),
        ("1(H100>A100)", GpuRequest(1, 1000, models=(("H100",), ("A100",)))),
        ("10Gi", GpuRequest(1, None, 10 * GIB)),
        ("1g.10gb", GpuRequest(1, 1000, mig_profile="1g.10gb")),
        ("2x1g.10gb", GpuRequest(2, 1000, mig_profile="1g.10gb")),
        # Vendors.
        ("1(ascend:910B4)", GpuRequest(1, 1000, models=(("910B4",),), vendor="npu")),
        ("1( Ascend : Ascend910B3 | 910B4 )", GpuRequest(1, 1000, models=(("910B3", "910B4"),), vendor="npu")),
        ("0.5(MI300X),64Gi", GpuRequest(1, 500, 64 * GIB, models=(("MI300X",),))),
        ("0.5(amd:MI300X>MI250X),64Gi", GpuRequest(1, 500, 64 * GIB, models=(("MI300X",), ("MI250X",)), vendor="amd")),
        ("1(intel)", GpuRequest(1, 1000, vendor="intel")),
        ("1(nvidia>amd)", GpuRequest(1, 1000, vendors=("nvidia", "amd"))),
        (
            "0.5( AMD > Ascend , MI300X|910B3 > MI250X ),20Gi",
            GpuRequest(1, 500, 20 * GIB, models=(("910B3", "MI300X"), ("MI250X",)), vendors=("amd", "npu")),
        ),
        ("8(gaudi:Gaudi3)", GpuRequest(8, 1000, models=(("GAUDI3",),), vendor="gaudi")),
        ("4(tpu)", GpuRequest(4, 1000, vendor="tpu")),
        ("1(cambricon:MLU370-X8)", GpuRequest(1, 1000, models=(("MLU370-X8",),), vendor="cambricon")),
        ("vir05_1c_16g", GpuRequest(1, 1000, mig_profile="vir05_1c_16g")),
        (
            "2xvir05_1c_16g(ascend:910B3)",
            GpuRequest(2, 1000, models=(("910B3",),), vendor="npu", mig_profile="vir05_1c_16g"),
        ),
        ("VIR02", GpuRequest(1, 1000, mig_profile="vir02")),
        ("2（V100）", GpuRequest(2, 1000, models=V100)),
        # Full width throughout, positions and all.
        ("２×０．５（Ａ１００｜Ｈ１００），２０Ｇｉ", GpuRequest(2, 500, 20 * GIB, models=(("A100", "H100"),))),
        ("０．２５（A100）、10Gi", GpuRequest(1, 250, 10 * GIB, models=A100)),
        # Blanks and order are free.
        ("  2  x  0.5 ( A100 | H100 > T4 ) , 20 Gi ", GpuRequest(2, 500, 20 * GIB, models=(("A100", "H100"), ("T4",)))),
        ("10Gi(A100),0.25", GpuRequest(1, 250, 10 * GIB, models=A100)),
        ("10Gi,0.25(A100)", GpuRequest(1, 250, 10 * GIB, models=A100)),
        ("10Gi,2", GpuRequest(2, 1000, 10 * GIB)),
        ("2,10Gi", GpuRequest(2, 1000, 10 * GIB)),
        ("1(V100,nvidia)", GpuRequest(1, 1000, models=V100, vendor="nvidia")),
        ("1(H100>A100|A10,nvidia)", GpuRequest(1, 1000, models=(("H100",), ("A10", "A100")), vendor="nvidia")),
        # Counts of parts and of memory.
        ("2x10Gi", GpuRequest(2, None, 10 * GIB)),
        ("2x10Gi,0.5", GpuRequest(2, 500, 10 * GIB)),
        ("10Gi,2x0.5", GpuRequest(2, 500, 10 * GIB)),
        ("3x1", GpuRequest(3, 1000)),
        ("1x0.5", GpuRequest(1, 500)),
        ("2X0.5", GpuRequest(2, 500)),
        # Numbers.
        ("0.001", GpuRequest(1, 1)),
        ("0.999", GpuRequest(1, 999)),
        (".5", GpuRequest(1, 500)),
        ("0.2500", GpuRequest(1, 250)),
        ("2.0", GpuRequest(2, 1000)),
        ("1024", GpuRequest(1024, 1000)),
        ("16Ti", GpuRequest(1, None, MAX_SLICE_MEMORY_BYTES)),
        ("0.5k", GpuRequest(1, None, 500)),
        ("1.5Gi", GpuRequest(1, None, 3 * GIB // 2)),
        # An older word for "a part", and one for "any GPU".
        ("0.5(vgpu)", GpuRequest(1, 500)),
        ("0.5(vgpu,V100)", GpuRequest(1, 500, models=V100)),
        ("1(GPU)", GpuRequest(1, 1000)),
        # Names in many spellings.
        ("1(v100m16)", GpuRequest(1, 1000, models=(("V100-16",),))),
        ("1(rtx 3090)", GpuRequest(1, 1000, models=(("RTX3090",),))),
        ("1(NVIDIA A100-SXM4-80GB)", GpuRequest(1, 1000, models=(("A100-80",),))),
        ("1(ascend,910b)", GpuRequest(1, 1000, models=(("910B",),), vendor="npu")),
        ("1(huawei)", GpuRequest(1, 1000, vendor="npu")),
        ("1(INTEL)", GpuRequest(1, 1000, vendor="intel")),
        ("1(g2)", GpuRequest(1, 1000, models=(("G2",),))),
        ("1(GPU-series-1)", GpuRequest(1, 1000, models=(("GPU-SERIES-1",),))),
        ("1(H300)", GpuRequest(1, 1000, models=(("H300",),))),
        # MIG.
        ("3G.40GB(H100)", GpuRequest(1, 1000, models=H100, mig_profile="3g.40gb")),
        ("1g.10gb+me", GpuRequest(1, 1000, mig_profile="1g.10gb+me")),
        ("1g.12gb+gfx", GpuRequest(1, 1000, mig_profile="1g.12gb+gfx")),
        ("1g.10gb-me(nvidia)", GpuRequest(1, 1000, vendor="nvidia", mig_profile="1g.10gb-me")),
    ],
)
def test_a_text_is_read(text: str, request_: GpuRequest) -> None:
    assert parse_request(text) == request_
    assert parse_request(format_request(request_)) == request_


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" 2 x 0.50 ( h100 | a100 ) , 20480Mi ", "2x0.5(A100|H100),20Gi"),
        ("8G,0.5", "0.5,8G"),
        ("3x1", "3"),
        ("1x10Gi", "10Gi"),
        ("1(V100,nvidia)", "1(nvidia,V100)"),
        ("1(A100|A100)", "1(A100)"),
        ("1(H100>A100>H100)", "1(H100>A100)"),
        ("1(H100,nvidia>huawei>NVIDIA)", "1(nvidia>npu,H100)"),
        ("1(amd>amd)", "1(amd)"),
        ("2x1G.10GB(h100)", "2x1g.10gb(H100)"),
        ("0.5k", "0.5k"),
    ],
)
def test_the_canonical_text_is_the_same_for_the_same_meaning(text: str, canonical: str) -> None:
    request = parse_request(text)
    assert format_request(request) == canonical
    assert str(request) == canonical


@given(requests())
def test_every_request_reads_back_from_its_text(request_: GpuRequest) -> None:
    assert parse_request(format_request(request_)) == request_


@given(requests(), st.data())
def test_blanks_case_and_width_change_nothing(request_: GpuRequest, data: st.DataObject) -> None:
    text = format_request(request_)
    blank = st.sampled_from(["", " ", "\t", "\N{IDEOGRAPHIC SPACE}"])
    varied = "".join(
        data.draw(blank) + _widened(char, data) + data.draw(blank) if char in "(),|>" else char for char in text
    )
    if len(varied) <= 256:
        assert parse_request(varied) == request_


def _widened(char: str, data: st.DataObject) -> str:
    return chr(ord(char) + 0xFEE0) if data.draw(st.booleans()) else char


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"count": -1, "share_milli": 500}, "count"),
        ({"count": 1025, "share_milli": 500}, "count"),
        ({"share_milli": 1001}, "share_milli"),
        ({"share_milli": -1}, "share_milli"),
        ({}, "share_milli"),
        ({"memory_bytes": MAX_SLICE_MEMORY_BYTES + 1}, "memory_bytes"),
        ({"share_milli": 500, "vendor": "acme"}, "vendor"),
        ({"share_milli": 500, "vendor": "amd", "models": [["A100"]]}, "models[0]"),
        ({"share_milli": 500, "models": [["A100"], ["A10O"]]}, "models[1]"),
        ({"share_milli": 500, "models": [["nvidia"]]}, "models[0]"),
        ({"share_milli": 500, "models": [[" "]]}, "models[0]"),
        ({"share_milli": 500, "models": [["x" * 65]]}, "models[0]"),
        ({"share_milli": 500, "models": [[f"X{i}"] for i in range(33)]}, "models"),
        ({"share_milli": 500, "models": [[f"X{i}" for i in range(33)]]}, "models[0]"),
        ({"mig_profile": "1g"}, "mig_profile"),
        ({"mig_profile": "1g.10gb", "share_milli": 500}, "share_milli"),
        ({"mig_profile": "1g.10gb", "memory_bytes": GIB}, "memory_bytes"),
        ({"mig_profile": "1g.10gb", "vendor": "amd"}, "vendor"),
        ({"mig_profile": "1g.10gb", "vendors": ["nvidia", "amd"]}, "vendor"),
        ({"share_milli": 500, "vendors": ["nvidia", "acme"]}, "vendors"),
        ({"share_milli": 500, "vendor": "amd", "vendors": ["nvidia", "amd"]}, "vendors"),
        ({"share_milli": 500, "vendors": ["nvidia", "amd"], "models": [["910B4"]]}, "models[0]"),
    ],
)
def test_a_request_out_of_range_names_its_field(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        GpuRequest.build(**fields)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.reason == "INVALID_FIELD"


def test_wire_values_are_brought_to_one_form() -> None:
    built = GpuRequest.build(count=0, share_milli=500, memory_bytes=0, models=[["h100", "A100"], []], vendor="")
    assert built == GpuRequest(1, 500, models=(("A100", "H100"),))
    assert GpuRequest.build(mig_profile="1G.10GB") == GpuRequest(1, 1000, mig_profile="1g.10gb")


@pytest.mark.parametrize(
    "fields",
    [
        {"count": True, "share_milli": 500},
        {"share_milli": 0.5},
        {"share_milli": 500, "models": (("H100", "A100"),)},
        {"share_milli": 500, "models": (("a100",),)},
        {"share_milli": 500, "vendor": "NVIDIA"},
        {"count": 0, "share_milli": 500},
    ],
)
def test_only_canonical_values_make_a_request(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidFieldError):
        GpuRequest(**fields)  # type: ignore[arg-type]
