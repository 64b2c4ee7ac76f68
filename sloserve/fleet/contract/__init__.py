"""What the parts of a fleet exchange: reports, plans, and the wire protocol of an agent's endpoint."""
