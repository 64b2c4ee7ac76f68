"""Chooses the model for a request that names none, only ``auto`` or a set.

``choose.py`` is what a gateway calls; it and all that it imports are pure, and need numpy alone. ``train.py`` makes
policies in the systems of ``environment.py``.
"""
