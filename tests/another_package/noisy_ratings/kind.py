"""The kind: its options, its output, how it trains and loads, and what it lacks."""

from dpserve.training.kinds.kind import WITHOUT_CLASSES, PayOnceKind
from dpserve.training.kinds.outputs import Output, Outputs
from dpserve.training.options import Options


class Ratings(Options):
    """The options of a noisy mean: none."""


class RatingsKind(PayOnceKind):
    """The noisy mean of ratings, which are classes whose names are numbers."""

    name = "ratings"
    sentence = "the noisy mean of the ratings, the same answer to every row"
    options = Ratings
    needs_n = True
    limitations = PayOnceKind.limitations | WITHOUT_CLASSES

    @property
    def certificate_type(self):
        """Return the type of its certificates."""
        from noisy_ratings.model import RatingsCertificate

        return RatingsCertificate

    def outputs(self, described):
        """Return the one number that is answered."""
        return Outputs((Output("mean_rating", "the mean rating of the records"),))

    def train(self, job, options):
        """Add up, add noise, and save."""
        from noisy_ratings.model import save_ratings, train_ratings

        asked = (
            job.records,
            job.name,
            job.feature_map,
            job.model_price,
            job.record_count,
            job.lineage,
            job.randomness,
        )
        return save_ratings(job.out, train_ratings(*asked, before=job.before))

    def load(self, folder, device):
        """Read and verify."""
        from noisy_ratings.model import load_ratings

        return load_ratings(folder, device)


KIND = RatingsKind()
