"""A kind of model that answers with a number: the noisy mean of the records' ratings."""
