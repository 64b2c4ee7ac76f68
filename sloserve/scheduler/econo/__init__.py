"""``econo``: admits what fits the KV cache to the end (EconoServe, as it pays on today's vLLM).

``policy.py`` plans; ``forecast.py`` foresees occupancy; ``preemption.py`` weighs a victim.
"""
