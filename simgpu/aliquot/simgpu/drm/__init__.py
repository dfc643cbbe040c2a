"""A simulated machine with cards of amdgpu, xe and i915: files as the kernel shows them, obeyed by a small model."""

from aliquot.simgpu.drm.machine import Machine, create
from aliquot.simgpu.drm.models import MODELS, CardModel

__all__ = ["MODELS", "CardModel", "Machine", "create"]
