// A refusal: what was refused, whose budget said no, what it would have cost, and that it cost nothing.

import { button, el } from "./dom.js";

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
export function refusalPanel(problem, { again = null } = {}) {
  const kind = String(problem.type).split(":").at(-1);
  const heading = TITLES[kind] ?? `Refused: ${String(problem.title ?? "no reason given")}`;
  return el(
    "div",
    { class: "refusal", role: "alert" },
    el("h2", {}, heading),
    el("p", {}, sentence(problem.detail)),
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
      el("pre", { class: "document", tabindex: 0, "aria-label": "The problem document" }, JSON.stringify(problem, null, 2)),
    ),
  );
}

function sentence(text) {
  const said = String(text ?? "");
  return said.slice(0, 1).toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}
