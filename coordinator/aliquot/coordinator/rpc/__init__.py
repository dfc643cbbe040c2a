"""The gRPC face of the coordinator: thin services that turn messages into commands and facts into answers."""
