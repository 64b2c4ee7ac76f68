"""Values and arithmetic that all packages share: SLOs, classes, request table, clock, errors, outcomes, QoE.

This package imports the standard library and numpy alone. Add a value here when two packages need it and it imports
neither of them.
"""
