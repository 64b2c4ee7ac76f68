"""The front end's admission: which requests wait, which latency a new one is predicted to have, whether to refuse it.

Imports estimator and core. Add a mode of admission in ``settings.AdmissionSettings``, which makes it.
"""
