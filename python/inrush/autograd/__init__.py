"""Additions to AOTAutograd: gradient formulas, shorter training steps, and cache entries with native code."""
