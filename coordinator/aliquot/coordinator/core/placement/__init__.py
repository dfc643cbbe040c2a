"""Where a request goes: feasible devices, scores, and the rule for ties."""
