"""Policies that only reproduce a paper or its rivals, for experiments. Do not run a server with them.

Imports lso and below. Add a rival here, so that it is not listed among the policies to choose from.
"""
