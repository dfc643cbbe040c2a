"""What can be read: the durable view with its followers, and what agents measured. Nothing here changes the pool."""
