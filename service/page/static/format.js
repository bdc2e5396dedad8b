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
 * Return how an account's amounts are said: in the currency that its limit was given in, in which limit, spent and
 * remaining add up, and a cost is by how much spent grows. isSum: whether what receipts charged adds up in it, too.
 */
export function unitOf({ currency, shown_in: name, limit, spent, remaining }) {
  const say = (amount) => `${name} ${figure(amount)}`;
  return {
    name,
    isSum: currency === name,
    say,
    spent: `${say(spent[name])} of ${figure(limit[name])} spent, ${figure(remaining[name])} left`,
    left: remaining[name],
  };
}
