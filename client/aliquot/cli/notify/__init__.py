"""`notify`: tells people, and programs, of leases that are idle. A client of the Watch, in its own process."""
