// An account: what is left, what it means for one record or person, and the analyses behind it.

import { halfCircle, responsive, spendChart } from "./charts.js";
import { byId, el, table } from "./dom.js";
import { chance, counted, figure, figureUp, percentUp, unitOf, whole } from "./format.js";

const ANALYSES = {
  basic: "Basic composition",
  advanced: "Advanced composition",
  zcdp: "Zero-concentrated DP",
  rdp: "Rényi DP",
  exact: "Exact or numerical",
};

/** budget: null where the service did not say it. Return what may still be asked of a model, in a line. */
export function standingOf(model, budget) {
  if (budget === null) return "not available now";
  const { limit, remaining, queries_left: left, currency, limiting_block: block } = budget;
  const unit = unitOf(budget);
  if (model.price) {
    if (budget.unlimited) return "Paid: unlimited answers";
    if (budget.model.admitted) return `Unlimited answers for ${unit.say(budget.model.shown_cost)}`;
    return block === null ? "What is left does not cover this model" : `What is left of the block ${block} does not cover this model`;
  }
  if (left === null) return `${unit.say(unit.left)} left`;
  const most = (amount) => Math.floor(amount[currency] / budget.price[currency] + 1e-9);
  if (left >= most(remaining)) return `About ${whole(left)} of ${counted(most(limit), "answer")} left`;
  return `About ${counted(left, "answer")} left in ${block === null ? "the budget that all clients share" : `the block ${block}`}`;
}

export function showAccount(model, budget) {
  byId("left-body").replaceChildren(priceInWords(model, budget));
  byId("gauge-body").replaceChildren(gauge(model, budget));
  byId("meaning-body").textContent = `For ${oneOf(budget)}, at most, once all is spent.`;
  byId("figures-body").replaceChildren(...figures(budget));
  byId("words-body").replaceChildren(...sentences(model, budget).map((said) => el("li", {}, said)));
  byId("attacks-body").replaceChildren(attacks(budget.explanation.attack_power));
  byId("analyses-body").replaceChildren(analyses(budget.explanation));
}

function priceInWords(model, budget) {
  if (model.price) return budget.unlimited ? "You have paid for this model. Its answers cost nothing more." : "The first answer pays for this model. Every further one is free.";
  const [unit, price] = [unitOf(budget), budget.price?.[budget.currency]];
  return price && unit.isSum ? `One answer costs ${unit.say(price)}.` : "";
}

function gauge(model, budget) {
  const [unit, left] = [unitOf(budget), budget.queries_left];
  const limit = budget.limit[unit.name];
  const { count, what } = budget.unlimited
    ? { count: "unlimited", what: "answers" }
    : left === null || model.price
      ? { count: unit.say(unit.left), what: "left" }
      : { count: whole(left), what: left === 1 ? "answer left" : "answers left" };
  return el(
    "div",
    {
      class: "gauge",
      role: "meter",
      "aria-label": "Budget left",
      "aria-valuemin": 0,
      "aria-valuemax": limit,
      "aria-valuenow": unit.left,
      "aria-valuetext": `${count} ${what}; ${unit.spent}`,
    },
    halfCircle(limit > 0 ? unit.left / limit : 0),
    el("p", { class: "middle" }, el("span", { class: count.length > 6 ? "count word" : "count" }, count), el("span", {}, what)),
    el("p", { class: "under", id: "spent" }, unit.spent),
  );
}

/** The privacy unit that the figures are about. */
const oneOf = ({ explanation: { unit } }) => (unit === null ? "one record" : `all records of one ${unit}`);

const points = (share) => percentUp(share).replace(" %", " points");

function figures({ posterior_belief_bound: belief, membership_advantage_bound: advantage, limit, spent, delta }) {
  return [
    ["How sure somebody may become", percentUp(belief.when_spent), "that one given record is among the training’s.", percentUp(belief.now)],
    ["How far an attack beats guessing", points(advantage.when_spent), "of 100, at most, in telling members from others.", points(advantage.now)],
    ["Epsilon", figureUp(limit.epsilon), `at delta = ${figure(delta)}, ${chance(delta)}.`, figureUp(spent.epsilon)],
  ].map(([name, value, said, now]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "big" }, value), el("dd", { class: "note" }, said), now !== value && el("dd", { class: "note" }, `${now} if you had settled to stop here.`)),
  );
}

/** The meaning of the figures, in short sentences. */
function sentences(model, { explanation, delta, limit, currency, shown_in: given, raised, status, analysis, ...budget }) {
  const { unit } = explanation;
  return [
    status === "unproven" && "Unproven: the guarantee of what this account pays for is claimed only.",
    "The figures are about all that this account may ever pay for.",
    "They hold whatever you ask, and whenever you stop.",
    currency === "rho" && "The limit must have been settled before the first answer.",
    `Imagine somebody who knows every record but ${unit === null ? "one" : `those of one ${unit}`}.`,
    `They think it as likely as not that ${unit === null ? "that record is" : "those are"} among the training’s.`,
    `After all your answers they are at most ${percentUp(budget.posterior_belief_bound.when_spent)} sure.`,
    `That fails with a probability of at most ${figure(delta)}, ${chance(delta)}.`,
    "An attack tries to tell members of the training from others.",
    `It catches members at most ${points(budget.membership_advantage_bound.when_spent)} of 100 more often than it wrongly accuses others.`,
    `All of it is (${figureUp(limit.epsilon)}, ${figure(delta)})-differentially private for adding or removing ${oneOf({ explanation })}.`,
    `Epsilon is by the ${analysis}, and rounded up.`,
    given !== currency && "An answer costs what it adds to epsilon: later ones add less.",
    currency === "epsilon" && "The account counts pure epsilon; delta is the noise sampler’s alone.",
    ...(raised === null
      ? []
      : [
          "The limit was raised after the first answer.",
          "Who had seen answers may have had a say: then no figure here is proved.",
          `Proved all the same, if the records had no say: at most ${percentUp(raised.posterior_belief_bound)} sure.`,
        ]),
    unit !== null && "This holds where every model of these records was trained with this unit.",
    `Clients who share their answers are bounded together by ${model.blocks?.length ? "the budgets of the blocks of records" : "the budget of the records"}.`,
    "Figures that everybody is shown, as in certificates, are not counted here.",
  ].filter(Boolean);
}

function attacks(power) {
  return table(
    "What the best attack could do once all is spent",
    [{ title: "accusing so many others wrongly" }, { title: "it catches at most so many members", numeric: true }],
    power.map((each) => [`${figure(each.false_positive_rate * 100)} %`, percentUp(each.true_positive_rate_bound)]),
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
  return shown;
}

export function showSpend({ receipts, complete }, budget) {
  const body = byId("spend-body");
  if (receipts.length === 0) {
    body.replaceChildren(el("p", { class: "loading" }, "Nothing has been charged yet."));
    return;
  }
  const unit = unitOf(budget);
  let total = 0;
  const points = receipts.map(({ time, charged, charged_rows: rows }) => ({ time, total: (total += unit.isSum ? charged : rows) }));
  const said = unit.isSum ? unit.say(total) : counted(total, "row");
  const summary = `${said} in ${counted(receipts.length, "charge")}${complete ? "" : ", the oldest"}.`;
  const host = el("div", {});
  body.replaceChildren(el("figure", {}, host, el("figcaption", {}, summary)));
  responsive(host, spendChart(points, unit.isSum ? budget.limit[unit.name] : Infinity, summary, unit.isSum ? `${unit.name} spent` : "rows paid for"));
}
