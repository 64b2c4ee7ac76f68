"""How long does one engine step take? Latency forms, their fit to measurements, profiles, correction on line.

Imports core and files. Add a latency form in ``latency.py``; a profile as YAML in ``estimator/profiles``.
"""
