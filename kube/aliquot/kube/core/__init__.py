"""What Kubernetes' side decides, pure: pods to requests, filter and bind, gangs, desired against actual. No I/O."""
