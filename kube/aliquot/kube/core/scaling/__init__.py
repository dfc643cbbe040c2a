"""What autoscalers are told of pods and of what waits, and the objects that they work by: no I/O."""
