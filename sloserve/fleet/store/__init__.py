"""What a fleet must not lose: requests that were accepted, their results, batches, the plan. SQLite or PostgreSQL."""
