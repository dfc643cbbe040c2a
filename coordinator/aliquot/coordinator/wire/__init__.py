"""The wire format: messages of the contract from and to what the core knows, and errors to statuses."""
