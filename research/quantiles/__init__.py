"""The worth of noisy quantiles on tables that no rule was found on: `python -m research.quantiles`."""
