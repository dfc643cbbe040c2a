"""What every part of aliquot shares: exact amounts, the request grammar, GPU models, ids, clocks, settings, TLS, logs.

Nothing here knows the coordinator, the agent or the client. Import from the modules; this package exports
nothing, so that importing one of them costs nothing more.
"""
