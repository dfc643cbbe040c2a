"""`aliquot autoscale`: writes, shows and removes what Kubernetes' autoscalers work by."""
