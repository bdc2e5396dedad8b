"""Class sums: the noisy sum of the records' directions in each class, released once."""
