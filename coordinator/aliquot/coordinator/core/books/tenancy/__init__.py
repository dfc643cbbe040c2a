"""Who may use how much: pools, tenants and queues, what is guaranteed to them, and what they hold."""
