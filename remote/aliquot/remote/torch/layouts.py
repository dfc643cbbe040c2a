"""One layout for all tensors of a session that have the same type, sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aliquot.remote.core.bounds import TEMPLATES_MAX
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import Layout


def layout_of(session: Session, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> Layout:
    """The session's one layout of these."""
    key = (dtype, tuple(shape), tuple(stride))
    layout = session.layouts.get(key)
    if layout is None:
        if len(session.layouts) >= 4 * TEMPLATES_MAX:
            # Those of living tensors go on being used; they only stop being found, which costs templates, not sense.
            session.layouts.clear()
        layout = session.layouts[key] = Layout(session, *key)
    return layout
