"""The time of one engine step: latency forms, their fit to measurements, profiles, correction on line.

The package imports core and files. Add a latency form in ``latency.py``; a profile as YAML in ``estimator/profiles``.
"""
