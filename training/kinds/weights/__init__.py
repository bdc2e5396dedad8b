"""Released weights: a certified head's weights with Gaussian noise, in one precision or several."""
