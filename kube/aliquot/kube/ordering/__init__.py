"""Carries orders of nodes out in a Kubernetes cluster: a client of the contract, and of the API server."""
