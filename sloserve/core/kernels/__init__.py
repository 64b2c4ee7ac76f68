"""Typed wrappers over the compiled kernels of ``csrc/``: they fix dtypes and layout, the compiled side checks sizes.

The package imports core and numpy. Add a wrapper here for each function that ``csrc/bindings`` binds.
"""
