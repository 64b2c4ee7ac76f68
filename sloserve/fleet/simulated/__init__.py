"""A fleet in virtual time: engines of several models on several instances, a dispatcher, and the swaps between models.

The module ``dispatcher.py`` defines what a dispatcher sees and what it may order, ``simulated_instance.py`` contains
one instance, and ``loop.py`` runs all of it. These modules import vLLM only if its scheduler is requested.
"""
