"""Replays of recordings in virtual time: what would have happened otherwise."""
