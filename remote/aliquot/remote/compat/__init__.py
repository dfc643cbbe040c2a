"""Scripts as they are: `cuda` means the parts of the lease in which a program runs (docs/remote-scripts.md).

`aliquot run --remote` puts `startup/` on the program's path; what is there calls `activate` when PyTorch is imported.
Tensors say that they are on `cuda`, because scripts ask them; everything else of them is `aliquot.remote.torch`'s.
"""

from aliquot.remote.compat.activation import activate
from aliquot.remote.errors import NotOnRemoteError

__all__ = ["NotOnRemoteError", "activate"]
