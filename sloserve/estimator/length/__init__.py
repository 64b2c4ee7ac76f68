"""How many tokens will a request still emit? One interface (``remaining.py``), several predictors, their training.

Imports core. Add a predictor as a module and name it in ``choice.py``.
"""
