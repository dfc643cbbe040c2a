"""The node-local socket: processes attach to their lease and get its environment."""
