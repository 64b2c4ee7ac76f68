"""Files an operator writes: read with the place of every value, checked with every mistake named at its place.

Imports core. Add a file format here.
"""
