"""Predictors of how many tokens a request will still emit.

The package has one interface (``remaining.py``), several predictors, and their training. It imports core. Add a
predictor as a module and name it in ``choice.py``.
"""
