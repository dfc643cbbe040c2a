"""The wire contract: modules generated from the .proto files beside this one at build time."""
