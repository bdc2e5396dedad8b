"""The adversary of the definition, who knows all records but one (Bernau et al. 2021): beliefs, advantage, epsilon'."""
