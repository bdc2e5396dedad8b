"""The common parts of models that are private themselves: certificate, answers, calibration."""
