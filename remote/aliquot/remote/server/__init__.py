"""The process that serves a lease: what the agent starts, and the engines that do what frames say."""
