"""Kubernetes as a launcher: pods and claims get exact parts of GPUs from the pool (docs/kubernetes.md)."""
