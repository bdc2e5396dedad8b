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
//
// Noise on the log-odds of one class that was drawn: what is shown of this class is its log-odds without noise, and the
// noise, whose quantiles are known (1.97 s and 3 b hold 95.1 and 95.02 of 100). With more than two classes the others share
// the rest evenly, whatever the model says of them: of each is known that it has no more than what this class leaves.
//
// A class v drawn in proportion to e^(z_v / s): by Markov's argument over the C - 1 other classes, the model's own
// likeliest class is more than e^g times as likely as v with probability at most (C - 1) e^(-g / s). Weights below 2^-24 of
// the largest are raised to it, which adds at most (C - 1) 2^-24: 0.0001 of the 0.05 is kept for that.

const COVERED = 0.95;
const DEVIATIONS = 2;
const QUANTILES = { gaussian: 1.97, laplace: 3 };
const MISSED = 1 - COVERED - 0.0001;
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

/** Return the ends for log-odds as far as `above` above those without noise, and as far as `below` below them. */
function ends(p, above, below) {
  // A probability shown as 1 stands for log-odds of at least those of MOST, one shown as 0 for at most those of LEAST.
  return [shareOf(oddsOf(Math.min(p, MOST)) - above), shareOf(oddsOf(Math.max(p, LEAST)) + below)];
}

/** Return the place of the class that is unlike all others, -1 if there is none. Of two classes either will do. */
function drawn(probabilities) {
  if (probabilities.length === 2) return 0;
  const [first, second, third] = probabilities;
  const rest = first === second || first === third ? first : second;
  return probabilities.findIndex((p) => p !== rest);
}

function besideDrawn(probabilities, { law, scale }) {
  const place = drawn(probabilities);
  if (place < 0) return null;
  const reached = QUANTILES[law] * scale;
  const around = ends(probabilities[place], reached, reached);
  const left = probabilities.length === 2 ? [1 - around[1], 1 - around[0]] : [0, 1 - around[0]];
  return probabilities.map((_, each) => (each === place ? around : left));
}

/** Return [low, high] for each class of one row's probabilities; null where no band is known. noise: as quoted, of the row. */
export function band(probabilities, noise) {
  if (!noise || noise.on === "selection") return null;
  if (noise.on === "log-odds") return besideDrawn(probabilities, noise);
  const { above, below } = reach(noise.law, noise.scale, probabilities.length);
  return probabilities.map((p) => ends(p, above, below));
}

/** Return how many times as likely as the class drawn the model holds any other at most, in 95 of 100 draws. */
export function mostTimesAsLikely(scale, classes) {
  return Math.exp(scale * Math.max(0, Math.log((classes - 1) / MISSED)));
}
