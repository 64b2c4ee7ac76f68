"""The front end's admission: who waits, what a new request is predicted to get, and whether to refuse it.

Imports estimator and core. Add a mode of admission in ``admission.py``.
"""
