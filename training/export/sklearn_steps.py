"""Transformers of scikit-learn whose fitted attributes are set to given numbers, and functions of NumPy as steps."""

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from accounting.arrays import Floats


def function(called: Any, **arguments: object) -> FunctionTransformer:
    """called(X, **arguments)"""
    return FunctionTransformer(called, kw_args=arguments)


def scaler(mean: Floats, scale: Floats | float) -> StandardScaler:
    """(x - mean) / scale."""
    fitted = StandardScaler()
    fitted.mean_, fitted.scale_ = mean, np.broadcast_to(scale, mean.shape).astype(np.float64)
    fitted.var_, fitted.n_features_in_ = np.square(fitted.scale_), len(mean)
    return fitted


def projection(matrix: Floats) -> GaussianRandomProjection:
    """X @ matrix.T"""
    fitted = GaussianRandomProjection(n_components=len(matrix))
    fitted.components_, fitted.n_features_in_ = np.ascontiguousarray(matrix), matrix.shape[1]
    return fitted


def sums(matrix: Any) -> SparseRandomProjection:
    """X @ matrix.T, of few terms each."""
    fitted = SparseRandomProjection(n_components=matrix.shape[0])
    fitted.components_, fitted.n_features_in_ = csr_matrix(matrix), matrix.shape[1]
    return fitted
