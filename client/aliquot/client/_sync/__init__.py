"""The SDK for programs with threads. `make sync` writes these modules from `_async`, but for `seam` and `leasing`."""
