"""One name per GPU model, whatever a driver, a trace or a user calls it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common import catalog
from aliquot.common._models import MODELS
from aliquot.common.catalog import (
    canonical_model,
    canonical_name,
    memory_total_bytes,
    mistaken_model,
    nearest_names,
    parse_vendor,
    vendor_of,
)
from aliquot.common.limits import MIB
from aliquot.common.request import format_request, parse_request


@pytest.mark.parametrize(
    ("product_name", "memory_mib", "model"),
    [
        ("Tesla T4", 15360, "T4"),
        ("Tesla P100-PCIE-16GB", 16384, "P100"),
        ("Tesla V100-SXM2-16GB", 16384, "V100-16"),
        ("Tesla V100-SXM2-32GB", 32768, "V100-32"),
        ("Tesla V100-DGXS-32GB", 32508, "V100-32"),
        ("Tesla V100S-PCIE-32GB", 32768, "V100-32"),
        ("NVIDIA A10", 23028, "A10"),
        ("NVIDIA A10G", 23028, "A10G"),
        ("NVIDIA A30", 24576, "A30"),
        ("NVIDIA A40", 46068, "A40"),
        ("NVIDIA RTX A6000", 49140, "A6000"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40"),
        ("A100-SXM4-40GB", 40536, "A100-40"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100-40"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80"),
        ("NVIDIA H100 PCIe", 81559, "H100-80"),
        ("NVIDIA H100 NVL", 95830, "H100-94"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA H200 NVL", 143771, "H200"),
        ("NVIDIA H20", 97871, "H20"),
        ("NVIDIA A1000", 8188, "A1000"),
        ("NVIDIA H800", 81559, "H800"),
        ("NVIDIA A800-SXM4-80GB", 81920, "A800-80"),
        ("NVIDIA GH200 480GB", 97871, "GH200-96"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA L40", 46068, "L40"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA GeForce RTX 3090", 24576, "RTX3090"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX6000-ADA"),
        ("AMD Instinct MI300X", 196592, "MI300X"),
        ("AMD Instinct MI250X", 65520, "MI250X"),
        ("AMD Instinct MI250", 65520, "MI250"),
        ("Intel(R) Data Center GPU Max 1550", 131072, "MAX1550"),
        ("Ascend910B3", 65536, "910B3"),
        ("910B", 65536, "910B"),
        # The size is not in the name: the memory decides.
        ("NVIDIA A100", 40960, "A100-40"),
        ("NVIDIA A100-PG509-200", 81920, "A100-80"),
        ("NVIDIA H100", 81559, "H100-80"),
        ("NVIDIA H100", 95830, "H100-94"),
        # Neither says: the family is all that is known.
        ("NVIDIA A100", None, "A100"),
        ("NVIDIA A100", 60000, "A100"),
        # A MIG instance has its parent's model, and its own memory says nothing of the parent's.
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728, "A100-80"),
        ("NVIDIA A100 MIG 7g.40gb", 40000, "A100"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", 40000, "H100-80"),
        # Similar names are other models.
        ("NVIDIA GeForce RTX 3090 Ti", 24564, "RTX3090TI"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "RTX4070TISUPER"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "RTX-4090-LAPTOP-GPU"),
        ("Quadro RTX 6000", 24576, "RTX6000"),
        ("NVIDIA RTX A5000", 24564, "A5000"),
        ("NVIDIA RTX A2000 12GB", 12282, "A2000"),
        # A part that a hypervisor cut is no whole card, however much of its memory it has.
        ("GRID A100-10C", 10240, "A100-10C"),
        ("NVIDIA A100-40C", 40960, "A100-40C"),
        ("NVIDIA P100-16Q", 16384, "P100-16Q"),
        ("HL-225B", 98304, "GAUDI2"),
        ("GRID A100D-7-80C", 81920, "A100D-7-80C"),
        ("NVIDIA H100L-94C", 95830, "H100L-94C"),
        ("GRID V100DX-32Q", 32768, "V100DX-32Q"),
        ("Acme(TM) Brain [rev 2] 10/16", 1, "ACME-BRAIN-REV-2-10-16"),
        ("", 0, "UNKNOWN"),
    ],
)
def test_a_drivers_product_name_gives_the_model(product_name: str, memory_mib: int | None, model: str) -> None:
    assert canonical_model(product_name, memory_mib and memory_mib * MIB) == model


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("V100M16", "V100-16"),
        ("v100m32", "V100-32"),
        ("A100-SXM4-80GB", "A100-80"),
        ("a100-80", "A100-80"),
        ("A100_80", "A100-80"),
        ("A100", "A100"),
        ("rtx 3090", "RTX3090"),
        ("3090", "RTX3090"),
        ("3090ti", "RTX3090TI"),
        ("geforce rtx 4080 super", "RTX4080SUPER"),
        ("V100S", "V100-32"),
        ("rtx a5000", "A5000"),
        ("6000 ada", "RTX6000-ADA"),
        ("Ascend 910B", "910B"),
        ("G1", "G1"),
        ("p100", "P100"),
        ("GPU-series-1", "GPU-SERIES-1"),
    ],
)
def test_a_name_in_any_spelling(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


@given(st.one_of(st.text(max_size=90), st.text("ANVIDGPU1020-_ .()/RTM", max_size=40)))
def test_a_canonical_name_is_its_own(name: str) -> None:
    canonical = canonical_name(name)
    assert canonical_name(canonical) == canonical
    assert canonical_name(canonical.lower()) == canonical
    assert re.fullmatch(r"[A-Z0-9](?:[A-Z0-9._-]*[A-Z0-9])?", canonical)
    assert len(canonical) <= 64


@pytest.mark.parametrize("name", sorted(catalog.BY_NAME))
def test_every_model_is_sound(name: str) -> None:
    model = catalog.BY_NAME[name]
    assert canonical_name(name) == name
    assert model.vendor in catalog.RESOURCE_NAMES
    assert vendor_of(name) == vendor_of(model.family) == model.vendor
    assert memory_total_bytes(name) == model.memory_total_bytes > 1 << 30
    assert mistaken_model(name) is None
    assert canonical_model(model.family, model.memory_total_bytes) in (name, model.family)


NVMLS = {pattern: model for model in MODELS for pattern in model.products if re.fullmatch(r"[\w. -]+", pattern)}
"""Products that the table spells out, rather than as a pattern."""


@given(
    st.sampled_from(sorted(NVMLS)),
    st.sampled_from(["", "NVIDIA ", "Tesla ", "NVIDIA GeForce ", "Quadro "]),
    st.sampled_from(["upper", "lower", "title"]),
    st.sampled_from(" -_"),
)
def test_a_request_understands_what_the_driver_calls_a_card_and_what_people_type(
    product: str, before: str, case: str, gap: str
) -> None:
    model = NVMLS[product]
    if model.vendor == "nvidia":
        product = before + product
    there = canonical_model(product, model.memory_total_bytes)
    typed = getattr(canonical_name(product), case)().replace("-", gap)
    for asked in (product, typed):
        assert there in catalog.with_families(parse_request(f"1({asked})").models[0]), asked


@given(st.sampled_from(sorted(catalog.BY_NAME)), st.sampled_from(["upper", "lower"]), st.data())
def test_gaps_within_a_name_do_not_matter(name: str, case: str, data: st.DataObject) -> None:
    pieces = re.findall(r"[A-Z]+|[0-9]+", name)
    written = pieces[0]
    for piece in pieces[1:]:
        written += data.draw(st.sampled_from(["", " ", "-", "_"])) + piece
    assert canonical_name(getattr(written, case)()) == name


@given(
    st.sampled_from(["A100", "A100D", "L40S", "H100L", "RTX6000", "T4"]), st.integers(1, 96), st.sampled_from("ABCQ")
)
def test_a_part_cut_by_a_hypervisor_is_a_model_of_its_own(card: str, gigabytes: int, series: str) -> None:
    profile = f"{card}-{gigabytes}{series}"
    assert canonical_model(f"GRID {profile}", gigabytes << 30) == canonical_name(profile) == profile
    assert profile not in catalog.with_families(["A100", "L40S", "H100", "RTX6000", "T4"])


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    assert vendor_of("G2") is None
    assert memory_total_bytes("G2") is None
    assert memory_total_bytes("A100") is None
    assert memory_total_bytes("T4") == 15360 * MIB


@pytest.mark.parametrize(
    ("word", "vendor"),
    [
        ("nvidia", "nvidia"),
        ("AMD", "amd"),
        ("Intel", "intel"),
        ("npu", "npu"),
        ("huawei", "npu"),
        ("gpu", None),
        ("", None),
    ],
)
def test_words_for_vendors(word: str, vendor: str | None) -> None:
    assert parse_vendor(word) == vendor


@pytest.mark.parametrize(
    ("name", "suggestion"), [("A10O", "A100"), ("AlO0", "A100"), ("nvdia", "nvidia"), ("Itnel", "intel"), ("npu", None)]
)
def test_surely_mistaken_names(name: str, suggestion: str | None) -> None:
    mistake = mistaken_model(name)
    assert mistake is not None
    assert mistake.suggestion == suggestion


@pytest.mark.parametrize("name", ["H300", "G1", "P100", "X9", "A1000", "B300", "MI400"])
def test_unknown_models_are_no_mistakes(name: str) -> None:
    assert mistaken_model(name) is None


def test_the_nearest_names_of_a_pool_or_of_the_catalogue() -> None:
    assert nearest_names("A1000")[0] == "A100"
    assert nearest_names("V100-32", ["V100M16", "T4"]) == ("V100-16",)
    assert nearest_names("zzz") == ()


def test_the_models_of_public_traces_can_be_asked_for(traces_dir: Path) -> None:
    with (traces_dir / "openb" / "openb_node_list_all_node.csv").open() as rows:
        names = {row["model"] for row in csv.DictReader(rows) if row["model"]}
    with (traces_dir / "alibaba-spot-2026" / "node_info_df.csv").open() as rows:
        names |= {row["gpu_model"] for row in csv.DictReader(rows) if row["gpu_model"]}
    assert "V100M16" in names
    for name in names:
        request = parse_request(f"1({name})")
        assert parse_request(format_request(request)) == request


@pytest.mark.parametrize(
    ("product_name", "model", "vendor", "memory_mib"),
    [
        ("AMD Instinct MI300X OAM", "MI300X", "amd", 196592),
        ("AMD Radeon RX 7900 XTX", "RX7900XTX", "amd", 24560),
        ("Radeon RX 7900 XT", "RX7900XT", "amd", 20464),
        ("AMD Radeon PRO W7900", "W7900", "amd", 46064),
        ("Intel(R) Arc(TM) B580 Graphics", "ARC-B580", "intel", 12288),
        ("Intel Arc Pro B60", "ARC-B60", "intel", 24576),
        ("HL-225", "GAUDI2", "gaudi", 98304),
        ("HL-325L", "GAUDI3", "gaudi", 131072),
        ("Ascend910B4", "910B4", "npu", 32768),
        ("Ascend910B4-1", "910B4-1", "npu", 65536),
        ("Ascend310P3", "310P", "npu", 21527),
        ("TPU v5e chip", "TPU-V5E", "tpu", 16384),
        ("MLU370-X8", "MLU370-X8", "cambricon", 49152),
        ("MTT S4000", "MTT-S4000", "mthreads", 49152),
    ],
)
def test_cards_of_other_vendors_have_their_true_memory(
    product_name: str, model: str, vendor: str, memory_mib: int
) -> None:
    assert canonical_model(product_name) == model
    assert vendor_of(model) == vendor
    assert memory_total_bytes(model) == memory_mib * MIB


@pytest.mark.parametrize("word", ["ascend", "Huawei", "NPU"])
def test_a_vendor_has_several_names(word: str) -> None:
    assert parse_vendor(word) == "npu"


def test_what_is_said_of_a_kind_is_said_of_all_below_it() -> None:
    assert catalog.covers("amd", "MI300X")
    assert catalog.covers("910B", "910B4")
    assert catalog.covers("amd", "amd"), "a request that names no more than its vendor"
    assert not catalog.covers("910B4", "910B")
    assert not catalog.covers("amd", "UNHEARD-OF")
    assert not catalog.covers("", "MI300X")
    assert [catalog.nearness(kind) for kind in ("*", "npu", "910B", "910B4")] == [0, 1, 2, 3]


def test_names_of_vendors_are_nobody_elses() -> None:
    words = [*catalog.VENDORS, *catalog.VENDOR_ALIASES]
    assert len(words) == len({*words, *catalog.NEUTRAL_WORDS}) - len(catalog.NEUTRAL_WORDS)
    assert len(set(catalog.RESOURCE_NAMES.values())) == len(catalog.VENDORS)
    assert {model.vendor for model in catalog.BY_NAME.values()} <= set(catalog.VENDORS)
