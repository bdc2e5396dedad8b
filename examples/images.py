"""Trains a classifier on images, by histograms of their gradients: scikit-learn's digits at 16 x 16 pixels.

python examples/images.py

The digits are public, so their exact accuracy may be printed. Private images are evaluated as in tabular.py.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dpserve import DPSGD, HogFeatures, Lineage, PrivateClassifier, Schema

small, digits = load_digits(return_X_y=True)
images = np.kron(small.reshape(-1, 8, 8), np.ones((2, 2))).reshape(len(small), -1)
seen, unseen, seen_digits, unseen_digits = train_test_split(images, digits, random_state=0)

schema = Schema(bounds=(0, 16), classes=list(range(10)))
model = PrivateClassifier(
    schema,
    epsilon=3,
    delta=1e-6,
    n=1300,
    kind=DPSGD(),
    features=HogFeatures(image_shape=(16, 16)),
    lineage=Lineage("digits-as-images", epsilon=3, delta=1e-6),
)
model.fit(seen, seen_digits)
print(f"right: {model.score(unseen, unseen_digits):.2f}")
