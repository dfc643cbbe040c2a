"""Who vouches for callers: an OpenID provider, and Kubernetes. What they say is exchanged once for a session token."""
