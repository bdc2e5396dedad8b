"""A kind of model that another package brings: it answers every row with noisy shares of the classes."""
