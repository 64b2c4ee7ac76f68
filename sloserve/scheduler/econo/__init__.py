"""``econo``: admits requests that fit the KV cache to their end (EconoServe, adapted to today's vLLM).

``policy.py`` plans; ``forecast.py`` foresees occupancy; ``preemption.py`` weighs a victim.
"""
