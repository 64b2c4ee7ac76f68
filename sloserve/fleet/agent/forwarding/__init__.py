"""Processes that pass requests to the engines of a host, where one process of the agent would not keep up.

The agent decides which requests are taken and which are ended; the processes read and write the bytes.
"""
