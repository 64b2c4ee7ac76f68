"""Policies that only reproduce a paper or its rivals, for experiments. Nobody should serve with them.

Imports lso and below. Add a rival here, so that it is not listed among the policies to choose from.
"""
