// A refusal: what was refused, whose budget said no, what it would have cost, and that it cost nothing.

import { button, el } from "./dom.js";
import { figure, figureUp } from "./format.js";

const TITLES = {
  "budget-exhausted": "Refused: the budget does not cover it",
  "mechanism-not-accepted": "Refused: the account does not pay for this mechanism",
  "ledger-unavailable": "Not now: the ledger is not available",
  "key-revoked": "Refused: this key was revoked",
  "key-expired": "Refused: this key has expired",
  "insufficient-scope": "Refused: this key is not good for that",
  "too-many-requests": "Not now: too many requests",
  unauthenticated: "Refused: this key is not known",
  overloaded: "Not now: the service has too much to do",
  "deadline-passed": "Not now: the answer would have come too late",
  unreachable: "No answer",
  "invalid-rows": "These rows cannot be asked about",
};

const WHOSE = {
  client: "Your own budget: what this key may learn.",
  group: "The budget of your group: what all its members together may learn. It is the same for each of them.",
  lineage: "The budget of the records: what all clients together may learn. It is the same for everyone.",
};

/** problem: an RFC 9457 document. again: what to do on a click, where asking again may help. */
export function refusalPanel(problem, { again = null, example = false } = {}) {
  const kind = String(problem.type).split(":").at(-1);
  const heading = TITLES[kind] ?? `Refused: ${String(problem.title ?? "no reason given")}`;
  return el(
    "div",
    { class: example ? "refusal example" : "refusal", role: example ? null : "alert" },
    el("h3", {}, heading),
    el("p", {}, sentence(problem.detail)),
    typeof problem.cost === "number" &&
      el(
        "dl",
        { class: "bill" },
        [
          ["would cost", figure(problem.cost)],
          ["left", figure(problem.remaining)],
          ["of", figure(problem.limit)],
        ].slice(0, typeof problem.remaining === "number" ? 3 : 1).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, `${problem.currency ?? "rho"} ${value}`))),
      ),
    WHOSE[problem.scope] && el("p", { class: "note" }, WHOSE[problem.scope]),
    kind === "budget-exhausted" &&
      el(
        "p",
        { class: "note" },
        "Asking again will not help. Rows that you paid for before are still answered, at no cost.",
      ),
    again && el("div", { class: "buttons" }, button("Ask again", again)),
    el(
      "details",
      {},
      el("summary", {}, "As a program sees it"),
      el("pre", { tabindex: 0, "aria-label": "The problem document" }, JSON.stringify(problem, null, 2)),
    ),
  );
}

function sentence(text) {
  const said = String(text ?? "");
  return said.slice(0, 1).toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}

/** The refusal that this account would meet if it asked for more rows than it can pay for. */
export function exampleProblem(budget) {
  const { currency } = budget;
  const [limit, spent, remaining] = [budget.limit, budget.spent, budget.remaining].map((amount) => amount[currency]);
  const price = budget.price?.[currency] || limit;
  // The whole budget, whose epsilon is known, where a part of it is spent.
  const cost = spent > 0 ? limit : (Math.floor(remaining / price) + 2) * price;
  const both = (amount, epsilon) =>
    currency === "epsilon" || epsilon === undefined
      ? `${currency} = ${figure(amount, 6)}`
      : `epsilon = ${figureUp(epsilon)} at delta = ${figure(budget.delta)} (${currency} = ${figure(amount, 6)})`;
  return {
    type: "urn:dpserve:problem:budget-exhausted",
    title: "Forbidden",
    status: 403,
    detail:
      `this request costs ${both(cost, spent > 0 ? budget.limit.epsilon : undefined)}, and ` +
      `${both(remaining, budget.remaining.epsilon)} of ${currency} = ${figure(limit, 6)} is left in the client's ` +
      "budget; nothing was charged",
    scope: "client",
    currency,
    cost,
    spent,
    remaining,
    limit,
  };
}
