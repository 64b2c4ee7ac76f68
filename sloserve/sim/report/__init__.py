"""What a run is turned into: records, comparisons with stock, tables, logs and plots. Alone imports matplotlib.

Imports core. Add a figure as a module and a row of ``plots.py``.
"""
