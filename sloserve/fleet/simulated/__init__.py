"""A fleet in virtual time: engines of several models on several instances, a dispatcher, and the swaps between models.

``dispatcher.py``: what a dispatcher is told and what it may ask for. ``simulated_instance.py``: one instance.
``loop.py``: the run.
Imports no vLLM unless asked for its scheduler.
"""
