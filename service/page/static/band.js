// How far noise may have moved a probability: an interval that holds the answer without noise in 95 of 100 answers.
//
// Write f(z) = z_k - ln(sum of e^(z_j) over j other than k): the log-odds of class k given the logits z. The answer
// shows f at z + n, and n is known noise. f is concave and its gradient, (1, -q) with q a distribution, has an L2 norm
// of at most sqrt(2).
//
// Gaussian noise of standard deviation s on each logit. From above, f(z + n) <= f(z) + gradient . n, so f(z + n) exceeds
// f(z) by more than t sqrt(2) s with probability at most 1 - Phi(t). From below, f is sqrt(2)-Lipschitz, so it falls
// more than t sqrt(2) s below its median with probability at most 1 - Phi(t) (Gaussian isoperimetry: Borell 1975); the
// median of a concave function of Gaussian noise is at least its mean (Kwapien 1994), and its mean is at least
// f(z) - s^2/2 by Jensen's inequality, or f(z) itself with two classes. With t = 2 both tails together are below 4.6 %;
// the rounding of noise and logits to the grid takes from what is left.
//
// Laplace noise of scale b on each logit: no |n_j| exceeds c = -b ln(1 - 0.95^(1/C)) with probability 0.95, and then f
// moves by at most 2 c.

const COVERED = 0.95;
const DEVIATIONS = 2;
const LEAST = Number.MIN_VALUE;
const MOST = 1 - 2 ** -53;

function oddsOf(p) {
  return Math.log(p) - Math.log1p(-p);
}

function shareOf(odds) {
  return 1 / (1 + Math.exp(-odds));
}

/** Return by how much the log-odds shown may lie {above, below} those without noise. noise: {law, scale} of a row. */
function reach(law, scale, classes) {
  if (law === "gaussian") {
    const above = DEVIATIONS * Math.SQRT2 * scale;
    return { above, below: above + (classes > 2 ? (scale * scale) / 2 : 0) };
  }
  if (law === "laplace") {
    const either = -2 * scale * Math.log(1 - COVERED ** (1 / classes));
    return { above: either, below: either };
  }
  throw new RangeError(`no band is known for ${law} noise`);
}

/** Return [low, high] for each class of one row's probabilities. */
export function band(probabilities, law, scale) {
  const { above, below } = reach(law, scale, probabilities.length);
  // A probability shown as 1 stands for log-odds of at least those of MOST, one shown as 0 for at most those of LEAST.
  return probabilities.map((p) => [
    shareOf(oddsOf(Math.min(p, MOST)) - above),
    shareOf(oddsOf(Math.max(p, LEAST)) + below),
  ]);
}
