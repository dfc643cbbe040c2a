"""Cards in MIG mode: whether and how they are cut anew for somebody who waits."""
