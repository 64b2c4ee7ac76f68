"""A fleet in virtual time whose members are killed, hang, are cut off and see a store that fails, all from one seed.

The members are the product's own objects; this package gives them time, a network, a disk and engines. See
``docs/fleet-testing.md``, and ``python -m tests.fleet.faults --help``.
"""
