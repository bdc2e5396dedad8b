"""Taking a pay-once model away: as ONNX, as a fitted scikit-learn estimator, or as arrays with their description."""
