"""The planner of a fleet: what the store knows becomes a plan. The simulated fleet runs the same objects."""
