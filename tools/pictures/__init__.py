"""Pictures of the console's page: of every screen, for the documentation, and of every state, to be looked at."""
