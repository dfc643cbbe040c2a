"""What could become of things, and why they are so: answers that need the State."""
