"""Which key speaks for which node, and who was invited to bring one."""
