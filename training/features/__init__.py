"""Feature maps, public encoders and image features: from rows to phi(x) with a norm of at most 1."""
