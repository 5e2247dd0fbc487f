"""The operator cases: one module for each family, `cases(suite)` in each adds its cases. See core.py for what a case is."""

import importlib

FAMILIES = (
    "pointwise",
    "integer",
    "promotion",
    "reduction",
    "view",
    "indexing",
    "matmul",
    "conv",
    "pool",
    "norm",
    "attention",
    "backward",
    "creation",
    "mutation",
    "structure",
    "dynamic",
    "special",
)


def collect(suite, families=FAMILIES):
    """Adds the cases of the named families to the suite."""
    for family in families:
        suite.family = family
        importlib.import_module("." + family, __name__).cases(suite)
