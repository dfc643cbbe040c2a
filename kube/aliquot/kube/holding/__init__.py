"""What this cluster holds of the pool: its leases followed, grants made and undone, and which nodes would fit."""
