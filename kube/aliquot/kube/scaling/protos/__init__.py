"""KEDA's interface of external scalers, as far as it is used; stubs are generated beside it."""
