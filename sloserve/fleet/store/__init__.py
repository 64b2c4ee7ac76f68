"""What a fleet must not lose: accepted requests, their results, batches and the plan, in SQLite or PostgreSQL."""
