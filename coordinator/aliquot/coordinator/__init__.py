"""The coordinator: decides who holds which part of which device, and makes that durable before anybody sees it."""

import os

# A coordinator starts processes for snapshots and prices. uvloop forks for that, and gRPC's handlers of forks stop and
# start its threads in both processes then: of 100 children one to three died by SIGSEGV before they were programs, and
# callers waited. No child goes on here without an exec, so they are not needed. gRPC reads this when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
