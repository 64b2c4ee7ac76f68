"""What the parts of a fleet tell each other: reports, plans, and the wire of an agent's door."""
