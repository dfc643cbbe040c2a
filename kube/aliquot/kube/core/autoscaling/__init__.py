"""Targets of autoscalers and the objects that they become: no I/O."""
