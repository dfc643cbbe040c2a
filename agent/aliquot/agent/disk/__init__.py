"""What an agent keeps on disk: its identity, reservations and attachments."""
