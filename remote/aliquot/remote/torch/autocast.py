"""What `torch.autocast("aliquot")` casts: the policy that PyTorch has for CUDA, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LOWER = """
    _convolution _convolution.deprecated conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding
    conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr
    matmul einsum mm mv linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell scaled_dot_product_attention
"""

_SINGLE = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm group_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod prod.dim_int softmax.int
    log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList
"""

_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add vdot cat stack
"""

_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
_FLOATING = (torch.float16, torch.bfloat16, torch.float32)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _FLOATING and value.dtype != dtype else value
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype) for item in value]
    return value


def _widest(values: Any) -> torch.dtype:
    widest = torch.get_autocast_dtype("aliquot")
    for value in values:
        if isinstance(value, (list, tuple)):
            found = _widest(value)
        elif isinstance(value, torch.Tensor):
            found = value.dtype
        else:
            continue
        if found == torch.float32:
            widest = torch.float32
    return widest


def _kernel(operator: Any, choose: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            dtype = choose(args)
            return operator(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})

    return run


def _refused(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "binary_cross_entropy is unsafe to autocast: use binary_cross_entropy_with_logits, which takes the scores "
        "themselves, or leave autocast for this line"
    )


_library = torch.library.Library("aten", "IMPL")
_others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")


def register() -> None:
    """Put the policy in place, once a process."""
    policies: tuple[tuple[str, Callable[[Any], torch.dtype]], ...] = (
        (_LOWER, lambda _: torch.get_autocast_dtype("aliquot")),
        (_SINGLE, lambda _: torch.float32),
        (_WIDEST, _widest),
    )
    _others.fallback(torch.library.fallthrough_kernel)
    for names, choose in policies:
        for name in names.split():
            base, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            _library.impl(name, _kernel(operator, choose), "AutocastPrivateUse1")
    _library.impl("binary_cross_entropy", _refused, "AutocastPrivateUse1")
