"""SLOs on the wire: how requests state them, how errors and outcomes are told. Knows no web framework and no engine.

Imports core. Add a header or a field here, and nowhere else.
"""
