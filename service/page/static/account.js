// An account: what is left, what it means for one person, and the analyses behind it.

import { beliefScale, halfCircle, responsive, spendChart } from "./charts.js";
import { byId, el, table } from "./dom.js";
import { chance, counted, figure, figureUp, percentUp, whole } from "./format.js";

const ANALYSES = {
  basic: "Basic composition",
  advanced: "Advanced composition",
  zcdp: "Zero-concentrated DP",
  rdp: "Rényi DP",
  exact: "Exact or numerical",
};

export function showAccount(budget, model) {
  byId("left-note").replaceChildren(...leftNote(budget, model));
  byId("gauge").replaceChildren(gauge(budget));
  byId("words").replaceChildren(
    el("p", { class: "prose", id: "plain-words" }, budget.explanation.in_plain_words),
  );
  byId("meaning-body").replaceChildren(...meaning(budget));
  byId("analyses-body").replaceChildren(...analyses(budget.explanation));
}

function leftNote(budget, model) {
  const { currency } = budget;
  const price = budget.price?.[currency] ?? 0;
  const said = [];
  if (price > 0) said.push(`One answer costs ${currency} = ${figure(price)}.`);
  if (price > 0 && budget.queries_left < Math.floor(budget.remaining[currency] / price + 1e-9)) {
    const whose = budget.limiting_block === null ? "The budget that all clients share" : `The block ${budget.limiting_block} of the model’s records`;
    said.push(` ${whose} has less left than you, and limits you.`);
  }
  if (model.price) {
    said.push(
      budget.unlimited
        ? "You have paid for this model: your answers are unlimited, and cost nothing more."
        : "This model is paid for once: the first answer pays for it, and every further one is free.",
    );
    if (budget.limiting_block !== null) said.push(` But the block ${budget.limiting_block} of its records has too little left for it.`);
  }
  if (model.blocks?.length && budget.limiting_block === null && !budget.unlimited) {
    const [name, count] = [model.blocks[0], model.blocks.length];
    said.push(count > 1 ? ` None of the ${whole(count)} blocks of its records has less left than you.` : ` The block ${name} of its records has no less left than you.`);
  }
  return said;
}

function gauge(budget) {
  const { currency, queries_left: left } = budget;
  const [limit, remaining] = [budget.limit[currency], budget.remaining[currency]];
  const share = limit > 0 ? remaining / limit : 0;
  const { count, what } = budget.unlimited
    ? { count: "unlimited", what: "answers" }
    : left === null
      ? { count: figure(remaining, 3), what: `${currency} left` }
      : { count: whole(left), what: left === 1 ? "answer left" : "answers left" };
  return el(
    "div",
    {
      class: "gauge",
      role: "meter",
      "aria-label": "Budget left",
      "aria-valuemin": 0,
      "aria-valuemax": limit,
      "aria-valuenow": remaining,
      "aria-valuetext": `${count} ${what}; ${currency} ${figure(remaining)} of ${figure(limit)} left`,
    },
    halfCircle(share),
    el("p", { class: "middle" }, el("span", { class: budget.unlimited ? "count word" : "count", id: "answers-left" }, count), el("span", {}, what)),
    el("p", { class: "under", id: "spent" }, inOrder(budget).flatMap((said, place) => (place ? [el("br"), said] : [said]))),
  );
}

/** What is spent, first in the unit that the budget was given in: in that one its limit is a short number. */
function inOrder({ currency, limit, spent, delta }) {
  if (currency === "epsilon") return [`epsilon ${figure(spent.epsilon)} of ${figure(limit.epsilon)} spent`, "pure: epsilons add up"];
  const rho = `rho ${figure(spent.rho)} of ${figure(limit.rho)} spent`;
  const epsilon = `epsilon ${figureUp(spent.epsilon)} of ${figureUp(limit.epsilon)} at delta = ${figure(delta)}`;
  return isShort(limit.rho) || !isShort(limit.epsilon) ? [rho, epsilon] : [`${epsilon} spent`, rho];
}

/** Whether a number is one of four digits except for rounding: budgets are rounded down to 1e-12 rho. */
function isShort(value) {
  return value > 0 && Math.abs(Number(value.toPrecision(4)) / value - 1) < 1e-8;
}

function meaning(budget) {
  const belief = budget.posterior_belief_bound;
  const advantage = budget.membership_advantage_bound;
  const power = budget.explanation.attack_power;
  const ofOneUnit = budget.explanation.unit !== null;
  return [
    el(
      "div",
      { class: "pair" },
      scale(
        "How sure they may become",
        belief,
        [0.5, 1],
        `Someone who knows every record but ${ofOneUnit ? "those of one unit" : "one"}, and thinks it as likely as not that
         ${ofOneUnit ? "a given unit’s are the rest" : "a given one is the last"}, stays below this, except with probability
         ${chance(budget.delta)}.`,
      ),
      scale(
        "How far an attack may tell members apart",
        advantage,
        [0, 1],
        "The most by which any attack catches members more often than it wrongly accuses others.",
      ),
    ),
    el("h3", {}, "What the best attack could do once all is spent"),
    el(
      "div",
      { class: "narrow" },
      table(
        "What the best attack could do once all is spent",
        [{ title: "accusing so many others wrongly" }, { title: "it catches at most so many members", numeric: true }],
        power.map((each) => [percent(each.false_positive_rate), percentUp(each.true_positive_rate_bound)]),
      ),
    ),
  ];
}

function percent(share) {
  return `${figure(share * 100)} %`;
}

function scale(title, bound, [low, high], words) {
  return el(
    "div",
    { class: "scale" },
    el("h3", {}, title),
    el(
      "p",
      { class: "head" },
      el("span", { class: "big" }, percentUp(bound.when_spent)),
      el("span", { class: "note" }, `whenever you stop; ${percentUp(bound.now)} if you settled beforehand to stop here`),
    ),
    beliefScale(low, high, bound.now, bound.when_spent),
    el("p", { class: "note" }, words.replace(/\s+/g, " ")),
  );
}

function analyses(explanation) {
  const known = explanation.analyses.map((each) => each.epsilon).filter((each) => each !== null);
  const most = Math.max(...known, 1e-12);
  const rows = explanation.analyses.map((each) => {
    const tightest = each.name === explanation.tightest && explanation.releases.length > 0;
    const bar = el("i", {});
    bar.style.width = `${((each.epsilon ?? 0) / most) * 100}%`;
    return {
      tightest,
      cells: [
        [ANALYSES[each.name] ?? each.name, el("span", { class: "method" }, each.method)],
        el("span", { class: "track-bar", "aria-hidden": "true" }, bar),
        [each.epsilon === null ? "does not apply" : figureUp(each.epsilon)],
        [each.holds_for_adaptive_prices ? "yes" : "no", tightest && [" ", el("span", { class: "tag" }, "tightest")]],
      ],
    };
  });
  const shown = table(
    `Epsilon at delta = ${figure(explanation.delta)}, by five analyses`,
    [
      { title: "analysis" },
      { title: "compared", hidden: true, kind: "wide-only" },
      { title: `epsilon at delta = ${figure(explanation.delta)}`, numeric: true },
      { title: "holds when prices adapt" },
    ],
    rows.map((row) => row.cells),
  );
  shown.querySelectorAll("tbody tr").forEach((row, place) => row.classList.toggle("tightest", rows[place].tightest));
  return [shown];
}

export function showSpend({ receipts, complete }, budget) {
  const body = byId("spend-body");
  const note = byId("spend-note");
  if (receipts.length === 0) {
    note.textContent = "";
    body.replaceChildren(el("p", { class: "loading" }, "Nothing has been charged yet."));
    return;
  }
  let total = 0;
  const points = receipts.map(({ time, charged }) => ({ time, total: (total += charged) }));
  const rows = receipts.reduce((count, receipt) => count + receipt.charged_rows, 0);
  note.textContent = `${counted(receipts.length, "charge")} for ${counted(rows, "row")}${complete ? "" : ", the oldest"}.`;
  const summary = `Spent so far: ${budget.currency} = ${figure(total)} of ${figure(budget.limit[budget.currency])}, in ${counted(receipts.length, "charge")}.`;
  const figure_ = el("figure", {});
  const host = el("div", {});
  figure_.append(host, el("figcaption", {}, summary));
  body.replaceChildren(figure_);
  responsive(host, spendChart(points, budget.limit[budget.currency], summary, budget.currency));
}
