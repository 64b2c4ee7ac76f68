"""SLOs on the wire: how requests state them, and how errors and outcomes are reported to clients.

The package knows no web framework and no engine, and imports core alone. Add a header or a field here, and nowhere
else.
"""
