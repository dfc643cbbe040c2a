"""REST below `/api/v1`: the SDK's methods, with the caller's own token."""
