"""What a run is turned into: records, comparisons with stock, tables, logs and plots. Alone imports matplotlib.

The package imports core. Add a figure as a module and a row of ``plots.py``.
"""
