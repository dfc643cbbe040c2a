"""NVML where the GPU is a part elsewhere, in C: what programs of `aliquot run --remote` load as `libnvidia-ml.so.1`."""

from pathlib import Path

LIBRARY = Path(__file__).parent / "lib" / "libnvidia-ml.so.1"
"""Only in wheels with C parts."""
