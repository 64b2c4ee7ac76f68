"""What arrives and what it asks for: trace readers, generators, SLO files, and workloads by name.

Imports core and files. Add a workload as a row of ``registry.py``, a trace format as a reader.
"""
