"""The API server, as clients at scale need it: bounded calls, watches that can't hang, records of only what is read."""
