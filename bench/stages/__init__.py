"""What is tried on the day when a real card is there, in stages (`run-hardware.sh` of `make bundle`)."""
