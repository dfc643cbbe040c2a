"""Pure parts of remote GPUs: what is sent, what is held, what it costs. No I/O, no torch."""
