"""Values and arithmetic that everything else speaks in: SLOs, classes, clock, errors, outcomes, QoE, goodput.

Imports the standard library and numpy only.
"""
