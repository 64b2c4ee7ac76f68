"""``sa``: the order of service that simulated annealing finds (SLO-aware scheduling).

``policy.py`` plans; ``times.py`` describes requests for the annealer.
"""
