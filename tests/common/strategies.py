"""Hypothesis strategies for the values of `aliquot.common`."""

from __future__ import annotations

from hypothesis import strategies as st

from aliquot.common import catalog, limits
from aliquot.common.request import GpuRequest

MODELS = st.one_of(
    st.sampled_from(sorted({*catalog.BY_NAME, *catalog.FAMILIES})),
    st.sampled_from(["G1", "G2", "GPU-series-1", "X-9000", "H300", "NVIDIA Foo Bar", "tpu v5e"]),
    st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,20}[0-9]", fullmatch=True),
).filter(lambda name: catalog.mistaken_model(name) is None)

SHARES_MILLI = st.integers(1, limits.WHOLE_SHARE_MILLI)
COUNTS = st.integers(1, limits.MAX_SLICES_PER_REQUEST)
MEMORY_BYTES = st.one_of(
    st.integers(1, limits.MAX_SLICE_MEMORY_BYTES),
    st.integers(1, 16384).map(lambda gib: gib * limits.GIB),
    st.integers(1, 17592).map(lambda giga: giga * 10**9),
)


@st.composite
def requests(draw: st.DrawFn) -> GpuRequest:
    """Any request there is."""
    vendors = draw(st.lists(st.sampled_from(catalog.VENDORS), max_size=3, unique=True))
    shape = draw(st.sampled_from(["share", "memory", "both", "mig"]))
    if shape == "mig":
        vendors = draw(st.sampled_from([[], ["nvidia"]]))
    fitting = MODELS.filter(lambda name: not vendors or catalog.vendor_of(name) in (None, *vendors))
    models = draw(st.lists(st.lists(fitting, max_size=4), max_size=4))
    count = draw(COUNTS)
    if shape == "mig":
        profile = draw(st.from_regex(r"[1-9]g\.[1-9][0-9]{0,2}gb(\+me|\+gfx|\+me\.all|-me)?", fullmatch=True))
        return GpuRequest.build(count=count, models=models, vendors=vendors, mig_profile=profile)
    share_milli = draw(SHARES_MILLI) if shape in ("share", "both") else None
    memory_bytes = draw(MEMORY_BYTES) if shape in ("memory", "both") else None
    return GpuRequest.build(
        count=count, share_milli=share_milli, memory_bytes=memory_bytes, models=models, vendors=vendors
    )
