"""The front end's admission: which requests wait, the predicted latency of a new one, and whether to refuse it.

The package imports estimator and core. Add a mode of admission in ``settings.AdmissionSettings``, which makes it.
"""
