"""Recordings of what an engine was asked and did, from which ``sloserve whatif`` replays it."""
