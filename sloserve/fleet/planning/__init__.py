"""The planner of a live fleet: the objects of the simulator's, fed from the store instead of from virtual time."""
