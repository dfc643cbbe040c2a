"""What keeps Kubernetes' objects and the pool's leases in step, whoever restarts and in which order."""
