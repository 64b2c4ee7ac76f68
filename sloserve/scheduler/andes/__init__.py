"""``andes``: the most quality of experience per token of KV (Andes).

``policy.py`` plans; ``outlook.py`` foresees QoE; ``room.py`` chooses victims and pauses.
"""
