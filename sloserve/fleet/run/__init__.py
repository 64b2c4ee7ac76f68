"""The processes of a live fleet, put together: gateway, planner, agents, or all of them in one command."""
