"""Values and arithmetic that all packages share: SLOs, classes, request table, clock, errors, outcomes, QoE.

Imports the standard library and numpy. Add a value here when two packages need it and it needs neither.
"""
