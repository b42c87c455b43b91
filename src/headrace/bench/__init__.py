"""Measuring: conditions, the probe, reports, and the comparison with other engines."""
