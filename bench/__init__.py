"""Measurements: one module per figure, run by `python -m bench`. Ratios within one run count, not figures."""
