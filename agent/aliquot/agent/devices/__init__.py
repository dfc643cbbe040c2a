"""Device backends: one protocol, one module per way of reading GPUs."""
