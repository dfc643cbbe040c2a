"""Dynamic Resource Allocation: claims that kube-scheduler has allocated are prepared before containers start."""
