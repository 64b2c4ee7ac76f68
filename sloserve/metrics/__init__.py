"""What is counted, and how it gets to ``/metrics``: shared-memory pages, and collectors that read them.

Imports core, admission, wire. Add a metric in ``class_metrics.py`` or ``engine_metrics.py``.
"""
