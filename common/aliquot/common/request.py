"""The request grammar: what people write to ask for parts of GPUs. One parser for SDK, CLI and Kubernetes.

    2                            two whole GPUs
    0.5                          half of one GPU, with half of its memory
    0.25(A100),10Gi              a quarter of an A100 (40 or 80), with 10Gi of its memory
    10Gi                         10Gi of one GPU, with the proportional share of its compute
    8G,0.5                       the order does not matter
    2x0.5(A100|H100),20Gi        two halves, each with 20Gi, on two GPUs of one node; A100 or H100
    1(H100>A100)                 an H100 if there is one now, else an A100
    2(amd)  1(nvidia,V100)       of a vendor: nvidia, amd, intel, npu (or ascend), gaudi, tpu, …
    1(nvidia>amd),20Gi           of NVIDIA's if there is one now, else of AMD's
    1(ascend:910B4)              the same as 1(ascend,910B4)
    1g.10gb  2x1g.10gb           MIG instances of that profile
    vir05_1c_16g                 Ascend's virtual NPUs of that template

In full:

        request  = amount ["(" where ")"] {"," amount}   one compute amount, one memory amount, or one of each
    amount   = [K "x"] (share | memory | mig)        K slices, on K distinct GPUs of one node
    share    = N | part                              N whole GPUs; or 0.001 to 0.999 of one, in thousandths
    memory   = Kubernetes quantity with a suffix     per slice: Ki Mi Gi Ti are powers of 1024, k M G T of 1000
    mig      = MIG profile | vNPU template           such as 1g.10gb, vir05_1c_16g
    where    = item {"," item}                       vendors and models at most once, in any order
    item     = vendor [":" models] | vendors | models | "vgpu"
    vendors  = vendor {">" vendor}                   in order of preference, before that of models
    models   = set {">" set}                         in order of preference
    set      = model {"|" model}                     any of these

- `8G` is 8,000,000,000 bytes and `8Gi` is 8,589,934,592, as in Kubernetes. `8GB` is refused, because people use it for
  both.
- A share without memory gets the proportional part of its device's memory, and memory without a share the proportional
  share. The parser leaves the missing one open (`None`).
- Model names are the catalogue's (`catalog.canonical_name`): a family such as A100 means any size of it.
  An unknown name matches only itself.
- `(vgpu)`, from older platforms, is accepted and ignored.
- Full-width digits, brackets, commas and signs are read as their ASCII twins; blanks around them are ignored.
- At most 256 characters, 1024 slices and 16Ti per slice.
"""

from __future__ import annotations

from functools import lru_cache

from aliquot.common._gpu_request import GpuRequest, format_request
from aliquot.common.errors import RequestSyntaxError
from aliquot.common.limits import MAX_REQUEST_TEXT_CHARS

__all__ = ["GpuRequest", "RequestSyntaxError", "format_request", "parse_request"]


def parse_request(text: str) -> GpuRequest:
    """Reads a request. Raises `RequestSyntaxError`, and nothing else, for any other text."""
    # Before the cache, so that it never keeps a long text.
    if len(text) > MAX_REQUEST_TEXT_CHARS:
        raise RequestSyntaxError(
            text, MAX_REQUEST_TEXT_CHARS, len(text), f"at most {MAX_REQUEST_TEXT_CHARS} characters in all"
        )
    return _parse_cached(text)


@lru_cache(maxsize=4096)  # a coordinator reads the same few texts thousands of times a second
def _parse_cached(text: str) -> GpuRequest:
    from aliquot.common._request_parser import parse  # noqa: PLC0415 - most commands read no request

    return parse(text)
