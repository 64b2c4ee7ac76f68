"""Files an operator writes: read with the place of every value, checked with every mistake named at its place.

The package imports core alone. Add a file format here.
"""
