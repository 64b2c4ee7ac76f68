"""SLOs on the wire: how requests state them. Knows no web framework and no engine."""
