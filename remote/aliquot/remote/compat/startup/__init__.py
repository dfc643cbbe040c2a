"""Found first on PYTHONPATH by programs of `aliquot run --remote`: its `sitecustomize` makes `cuda` mean the lease."""
