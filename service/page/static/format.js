// Figures as people read them. A bound is rounded up: never to the flattering side.

const NONE = "–";

function plain(value, digits) {
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-4) return scientific(value, digits);
  const text = value.toPrecision(digits);
  return text.includes("e") ? scientific(value, digits) : text.includes(".") ? String(Number(text)) : text;
}

function scientific(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}e${Number(exponent)}`;
}

function roundedUp(value, digits) {
  if (value === 0) return 0;
  const scale = 10 ** (digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  // A figure that is exact to more digits than are shown must not be pushed on by its last binary one.
  const scaled = value * scale;
  return (Math.abs(scaled - Math.round(scaled)) < 1e-9 ? Math.round(scaled) : Math.ceil(scaled)) / scale;
}

export function figure(value, digits = 4) {
  return value === null || value === undefined ? NONE : plain(value, digits);
}

export function figureUp(value, digits = 4) {
  return value === null || value === undefined ? NONE : plain(roundedUp(value, digits), digits);
}

/** A share as a percentage, rounded up; 100 % is said only of 1. */
export function percentUp(share) {
  const tenths = Math.ceil(share * 1000 - 1e-9);
  if (tenths < 1000 || share >= 1) return `${(tenths / 10).toFixed(1)} %`;
  return share <= 0.9999 ? "99.99 %" : "almost 100 %";
}

export function probability(value) {
  return value.toFixed(3);
}

export function whole(value) {
  return value.toLocaleString("en");
}

export function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

export function moment(seconds) {
  return new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" }).format(new Date(seconds * 1000));
}

/** A chance like 1e-6 as "one in a million". */
export function chance(delta) {
  const inverse = Math.round(1 / delta);
  const names = { 1000: "a thousand", 1000000: "a million", 1000000000: "a billion" };
  return `one in ${names[inverse] ?? whole(inverse)}`;
}

/**
 * Return how an account's amounts are said: in the currency that its limit was given in. Rho and pure epsilons add up.
 * Epsilons at a delta do not, and amounts of such an account are parts of its limit, in percent.
 */
export function unitOf({ currency, shown_in: given, limit }) {
  const full = limit[currency];
  const inParts = currency !== given;
  const of = inParts ? (amount) => (full > 0 ? (100 * amount) / full : 0) : (amount) => amount;
  // A part is not said to be the whole.
  const short = (amount) => (inParts ? `${figure(of(amount) < 100 ? Math.min(of(amount), 99.9) : of(amount), 3)} %` : `${currency} ${figure(amount)}`);
  return {
    title: inParts ? "% of the budget" : currency,
    of,
    short,
    say: (amount) => (inParts ? `${short(amount)} of the budget` : short(amount)),
    spent: (amount) => (inParts ? `${short(amount)} spent, limit epsilon ${figureUp(limit.epsilon)}` : `${short(amount)} of ${figure(full)} spent`),
    /** An amount by itself, {epsilon, rho}: not one of several that are to add up. */
    alone: ({ epsilon, rho }) => (given === "epsilon" ? `epsilon ${figureUp(epsilon)}` : `rho ${figure(rho)}`),
  };
}
