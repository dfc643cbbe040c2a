"""The pool's answers as immutable values: no protobuf in a user's program, names with units, typed states.

They show one moment: ask again, or `watch`, to see changes. `None` means "unknown", never zero. `_milli` is thousandths
(of a device, of a CPU), `_bytes` bytes, `_ms` milliseconds since the Unix epoch on the coordinator's clock; a time of 0
has not come. `seq` is the number of a durable fact: it only rises.
"""
