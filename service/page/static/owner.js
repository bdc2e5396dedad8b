// The owner's page: what is answered now, accounts, models, verdicts. It reads and changes nothing.

import { Owner } from "./api.js";
import { plot, responsive, ticksTo } from "./charts.js";
import { button, byId, el, table } from "./dom.js";
import { counted, figure, figureUp, moment, whole } from "./format.js";
import { modelFacts } from "./model.js";
import { refusalPanel } from "./refusal.js";
import { arrive, mountSession, problemOf } from "./session.js";
import { verdictPanel } from "./verdicts.js";

const LIVE_EVERY = 2000;
const ALL_EVERY = 15000;
const SECONDS = 120;

let owner = null;
let timers = [];
let shown = {};
/** How many clients were asked for by "More": a refresh shows as many. */
let unfolded = 0;

async function enter(key) {
  const candidate = new Owner(key);
  const first = await candidate.get("lineages");
  return async () => {
    owner = candidate;
    showLineages(first);
    arrive("What the owner watches", `Signed in. ${counted(first.lineages.length, "lineage")}.`);
    await Promise.all([refreshLive(), refreshAll()]);
    timers = [setInterval(whileSeen(refreshLive), LIVE_EVERY), setInterval(whileSeen(refreshAll), ALL_EVERY)];
  };
}

function leave() {
  owner.forget();
  owner = null;
  shown = {};
  unfolded = 0;
  timers.forEach(clearInterval);
}

const whileSeen = (refresh) => () => document.visibilityState === "visible" && refresh();

/** Show what `path` answers in a section, unless it is what is shown already; or the refusal in its place. */
async function refreshPart(name, load, show) {
  const asked = owner;
  if (asked === null) return;
  let content;
  try {
    content = await load(asked);
  } catch (error) {
    const problem = problemOf(error);
    if (owner !== asked) return;
    if (problem.status === 401) end(`${problem.detail}. You were signed out.`);
    else byId(`${name}-body`).replaceChildren(refusalPanel(problem));
    delete shown[name];
    return;
  }
  const told = JSON.stringify(content);
  if (owner !== asked || shown[name] === told) return;
  shown[name] = told;
  show(content);
}

const refreshLive = () => refreshPart("live", (asked) => asked.get("throughput"), showLive);

async function refreshAll() {
  await Promise.all([
    refreshPart("lineages", (asked) => asked.get("lineages"), showLineages),
    refreshPart("models", (asked) => asked.get("models"), showModels),
    refreshPart("verdicts", (asked) => asked.get("verdicts"), showVerdicts),
    refreshPart("clients", clientsOfServed, showClients),
  ]);
}

async function clientsOfServed(asked) {
  const { lineages } = await asked.get("lineages");
  const served = lineages.find((each) => each.served) ?? lineages[0];
  let { clients, next_after: next } = await asked.clients(served.lineage);
  while (next !== null && clients.length < unfolded) {
    const page = await asked.clients(served.lineage, next);
    clients = [...clients, ...page.clients];
    next = page.next_after;
  }
  return { lineage: served.lineage, clients, next_after: next };
}

function showLive({ totals, seconds }) {
  const newest = seconds.at(-1)?.time ?? 0;
  const rate = (name) => seconds.map((each) => [each.time - newest, Math.max(0, each[name]) / each.length]);
  const free = rate("rows_free");
  const rows = rate("rows_charged").map(([time, charged], place) => [time, charged + free[place][1]]);
  const most = Math.max(1, ...rows.map(([, value]) => value));
  const recent = seconds.slice(-10);
  const length = recent.reduce((sum, each) => sum + each.length, 0) || 1;
  const perSecond = (name) => recent.reduce((sum, each) => sum + each[name], 0) / length;
  const figures = [
    ["rows a second", figure(perSecond("rows_charged") + perSecond("rows_free"), 3)],
    ["requests a second", figure(perSecond("answered") + perSecond("refused"), 3)],
    ["rows charged in all", whole(totals.rows_charged)],
    ["rows replayed in all", whole(totals.rows_free)],
    ["requests answered in all", whole(totals.answered)],
    ["requests refused in all", whole(totals.refused)],
  ];
  const summary = `Rows a second over the last ${counted(Math.round(-(rows[0]?.[0] ?? 0)), "second")}, ${figures[0][1]} in the last ten.`;
  const host = el("div", {});
  byId("live-body").replaceChildren(
    el("dl", { class: "bill", id: "throughput" }, figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    el("figure", {}, host, el("figcaption", {}, "Rows answered in each second. Dashed: requests refused.")),
  );
  responsive(
    host,
    plot({
      summary,
      height: 200,
      xLabel: "seconds ago",
      yLabel: "a second",
      xTicks: [-SECONDS, -90, -60, -30, 0].map((value) => ({ value, text: String(-value) })),
      yTicks: ticksTo(most).map((value) => ({ value, text: figure(value) })),
      curves: [
        { points: rows, kind: "measured" },
        { points: rate("refused"), kind: "line dashed" },
      ],
    }),
  );
}

function share(account) {
  const part = account.limit.rho > 0 ? account.remaining.rho / account.limit.rho : 0;
  const bar = el("i", {});
  bar.style.width = `${100 * part}%`;
  const said = `rho ${figure(account.remaining.rho)} of ${figure(account.limit.rho)}`;
  return el("span", { class: "left-bar" }, el("span", { class: "track-bar", "aria-hidden": "true" }, bar), said);
}

function showLineages({ lineages }) {
  byId("lineages-body").replaceChildren(
    lineages.length === 0
      ? el("p", { class: "loading" }, "The ledger has no lineage yet.")
      : table(
          "Lineages",
          [{ title: "lineage" }, { title: "left" }, { title: "epsilon spent", numeric: true }, { title: "releases", numeric: true }, { title: "belief, at most", numeric: true }],
          lineages.map(({ lineage, served, account, releases }) => [
            [el("span", { class: "mono" }, lineage), served && [" ", el("span", { class: "tag" }, "served")], account.status === "unproven" && [" ", el("span", { class: "tag warn" }, "unproven")]],
            share(account),
            `${figureUp(account.spent.epsilon)} of ${figureUp(account.limit.epsilon)}`,
            whole(releases),
            account.posterior_belief_bound.when_spent.toFixed(4),
          ]),
        ),
  );
}

function showClients({ lineage, clients, next_after: next }) {
  const body = byId("clients-body");
  if (clients.length === 0) {
    body.replaceChildren(el("p", { class: "loading" }, "There is no client yet. ", el("code", {}, "dpserve clients add NAME --epsilon 1 --delta 1e-6"), " makes one."));
    return;
  }
  const columns = [{ title: "client" }, { title: "left" }, { title: "epsilon spent", numeric: true }, { title: "answers", numeric: true }, { title: "answers left", numeric: true }, { title: "since" }];
  const rows = clients.map(({ client, revoked, account, releases, created }) => [
    [client, revoked && [" ", el("span", { class: "tag bad" }, "revoked")], account.queries_left === 0 && !revoked && [" ", el("span", { class: "tag warn" }, "spent")]],
    share(account),
    `${figureUp(account.spent.epsilon)} of ${figureUp(account.limit.epsilon)}`,
    whole(releases),
    account.unlimited ? "unlimited" : account.queries_left === null ? "–" : whole(account.queries_left),
    moment(created),
  ]);
  const more = button("More", async () => {
    const page = await owner.clients(lineage, next);
    unfolded = clients.length + page.clients.length;
    showClients({ lineage, clients: [...clients, ...page.clients], next_after: page.next_after });
  });
  body.replaceChildren(table("Clients", columns, rows), el("div", { class: "buttons" }, next !== null && more, el("span", { class: "note" }, counted(clients.length, "client"))));
}

function showModels({ models }) {
  byId("models-body").replaceChildren(
    ...models.map((model) =>
      el(
        "div",
        { class: "card" },
        modelFacts(model),
        el("details", {}, el("summary", {}, "The whole certificate"), el("pre", { class: "document", tabindex: 0, "aria-label": "Certificate" }, JSON.stringify(model, null, 2))),
      ),
    ),
  );
}

function showVerdicts({ verdicts, live }) {
  const parts = verdicts.map(verdictPanel);
  if (live) parts.unshift(livePanel(live));
  byId("verdicts-body").replaceChildren(
    ...(parts.length ? parts : [el("p", { class: "loading" }, "There is none yet. ", el("code", {}, "dpserve attack --json"), " and ", el("code", {}, "dpserve audit … --json"), " leave theirs here.")]),
  );
}

function livePanel(live) {
  const refuted = live.refuted === true;
  return el(
    "article",
    { class: `verdict ${refuted ? "convicted" : "acquitted"}` },
    el("p", { class: "note" }, el("span", { class: refuted ? "tag bad" : "tag good" }, refuted ? "refuted" : "not refuted"), " the service’s own audit"),
    el("p", {}, refuted ? "The service’s own audit refutes the claim: stop the service." : "The service audits its own noise, and finds nothing against the claim so far."),
    el("details", {}, el("summary", {}, "Figures"), el("pre", { class: "document", tabindex: 0, "aria-label": "Figures of the service’s own audit" }, JSON.stringify(live, null, 2))),
  );
}

const end = mountSession({ what: "admin key", enter, leave });
