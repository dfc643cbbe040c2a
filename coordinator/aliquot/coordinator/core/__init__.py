"""Pure decisions: functions of (state, command, now) that do no I/O, so that a journal replays to the same state."""
