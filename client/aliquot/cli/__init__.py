"""The command line: the SDK for people."""
