"""Typed wrappers over the compiled kernels of ``csrc/``: they fix dtypes and layout, the compiled side checks sizes."""
