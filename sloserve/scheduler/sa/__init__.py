"""``sa``: the order of service that simulated annealing finds (SLO-aware scheduling).

``policy.py`` plans; ``times.py`` says what the annealer is told about requests.
"""
