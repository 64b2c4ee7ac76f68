"""Where the agents of a fleet come from, who starts them again, and who adds hosts."""
