"""What arrives and what it asks for: trace readers, generators, SLO files, and workloads by name.

The package imports core and files. Add a workload as a row of ``workload_registry.py``, a trace format as a reader.
"""
