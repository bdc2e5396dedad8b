"""What can go wrong offline, each as one clear sentence for the owner."""


class TrainingError(Exception):
    """Base of everything that training and bundles refuse."""


class DataError(TrainingError):
    """The records do not fit what their owner declared; names the row and the column."""


class NotConverged(TrainingError):
    """The solver did not reach the gradient norm that the certificate would state, so there is none."""


class BundleError(TrainingError):
    """A bundle is missing, damaged, or does not match its certificate."""


class NotExportable(TrainingError):
    """A model cannot be taken away, or not so; says why and what to do."""
