"""How frames travel: gRPC with TLS between a program and the process that serves its lease."""
