"""Agents: their sessions, what they are told to hold, and whether they are heard."""
