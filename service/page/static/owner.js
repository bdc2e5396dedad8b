// The owner's page: what is answered now, accounts and what the owner changes of them, models, verdicts.

import { actsAbout, close, downloadTrail, forgetActs, keyInWords, labelOf, perform, show, showAccount } from "./acts.js";
import { Owner } from "./api.js";
import { plot, responsive, spendChart, ticksTo } from "./charts.js";
import { button, byId, el, table } from "./dom.js";
import { counted, figure, figureUp, moment, whole } from "./format.js";
import { modelFacts } from "./model.js";
import { showReceipts } from "./receipts.js";
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
/** The lineage whose clients are shown: the owner's choice, or the one that is served. */
let chosen = null;
let lineages = [];
let groups = [];
/** The JSON Schemas of the acts that the service offers. */
let acts = [];
/** Which account's dialog was opened: its button has the focus again when the dialog is closed. */
let opened = null;

async function enter(key) {
  const candidate = new Owner(key);
  const [first, offered] = await Promise.all([candidate.get("lineages"), candidate.acts()]);
  return async () => {
    owner = candidate;
    acts = offered;
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
  chosen = opened = null;
  lineages = groups = acts = [];
  forgetActs();
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
  ]);
  if (lineages.length === 0) return;
  await Promise.all([
    refreshPart("clients", clientsOfChosen, showClients),
    refreshPart("groups", (asked) => asked.get(`${path()}/groups`), showGroups),
    refreshPart("spending", async (asked) => ({ ...(await asked.get(`${path()}/spending`)), of: chosen }), showSpending),
  ]);
}

const path = () => `lineages/${encodeURIComponent(chosen)}`;

async function clientsOfChosen(asked) {
  const lineage = chosen;
  let { clients, next_after: next } = await asked.clients(lineage);
  while (next !== null && clients.length < unfolded) {
    const page = await asked.clients(lineage, next);
    clients = [...clients, ...page.clients];
    next = page.next_after;
  }
  return { lineage, clients, next_after: next };
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
  const { currency } = account;
  const [limit, remaining] = [account.limit[currency], account.remaining[currency]];
  const part = limit > 0 ? remaining / limit : 0;
  const bar = el("i", {});
  bar.style.width = `${100 * part}%`;
  const said = `${currency} ${figure(remaining)} of ${figure(limit)}`;
  return el("span", { class: "left-bar" }, el("span", { class: "track-bar", "aria-hidden": "true" }, bar), said);
}

/** A button that opens an account's dialog. It is found again by its name, since a refresh makes another one. */
function opener(label, account, open) {
  const node = button(label, () => {
    opened = account;
    open();
  }, { class: "quiet" });
  node.dataset.account = account;
  return node;
}

const openerOf = (account) => [...document.querySelectorAll("[data-account]")].find((node) => node.dataset.account === account);

/** Put new content into a section; whoever was on a button of it is on the same one of the new content. */
function replace(name, ...content) {
  const focused = byId(`${name}-body`).contains(document.activeElement) ? document.activeElement.dataset.account : undefined;
  byId(`${name}-body`).replaceChildren(...content);
  if (focused !== undefined) openerOf(focused)?.focus();
}

/** Ask for an act on a lineage, by default the one that is shown. more: as `perform` has it. */
function act(schema, { given = {}, known = {}, ...more } = {}) {
  const asked = owner;
  const lineage = more.lineage ?? chosen;
  perform({
    schema,
    given: { lineage, ...given },
    known: { group: groups.map((each) => each.group), lineage: lineages.map((each) => each.lineage).filter((each) => each !== lineage), ...known },
    currency: (more.account ?? lineages.find((each) => each.lineage === lineage).account).currency,
    post: (path, body) => asked.post(path, body),
    done: () => refreshAll(),
    ...more,
  });
}

/** What can be done with an account: [[label, act]]. */
const actsOn = (scope, subject, more) => actsAbout(acts, scope).map((schema) => [labelOf(schema), () => act(schema, { subject, ...more })]);

/** The buttons that open an account of a scope. */
const openers = (scope) => actsAbout(acts, scope, true).map((schema) => opener(labelOf(schema), schema.properties.act.const, () => act(schema)));

function accountFacts(account) {
  const refill = account.refill;
  return [
    ["epsilon spent", `${figureUp(account.spent.epsilon)} of ${figureUp(account.limit.epsilon)} at delta = ${figure(account.delta)}`],
    ...(account.currency === "rho" ? [["rho spent", `${figure(account.spent.rho)} of ${figure(account.limit.rho)}`]] : []),
    ...(refill ? [["each period", `${account.currency} ${figure(refill.each[account.currency])} a ${refill.period}, ${figure(refill.remaining)} of it left`]] : []),
  ];
}

function showLineages(content) {
  lineages = content.lineages;
  if (!lineages.some((each) => each.lineage === chosen)) chosen = (lineages.find((each) => each.served) ?? lineages[0])?.lineage ?? null;
  replace(
    "lineages",
    lineages.length === 0
      ? el("p", { class: "loading" }, "The ledger has no lineage yet.")
      : table(
          "Lineages",
          [{ title: "lineage" }, { title: "left" }, { title: "epsilon spent", numeric: true }, { title: "releases", numeric: true }, { title: "belief, at most", numeric: true }],
          lineages.map((each) => [
            [opener(each.lineage, `lineage:${each.lineage}`, () => openLineage(each)), each.served && [" ", el("span", { class: "tag" }, "served")], each.account.status === "unproven" && [" ", el("span", { class: "tag warn" }, "unproven")]],
            share(each.account),
            `${figureUp(each.account.spent.epsilon)} of ${figureUp(each.account.limit.epsilon)}`,
            whole(each.releases),
            each.account.posterior_belief_bound.when_spent.toFixed(4),
          ]),
        ),
  );
}

function openLineage({ lineage, account, created }) {
  const asked = owner;
  showAccount(`Lineage ${lineage}`, [...accountFacts(account), ["since", moment(created)]], [
    ...(lineage === chosen ? [] : [["Show its clients", () => choose(lineage)]]),
    ["Show its receipts", () => openReceipts(lineage)],
    ...actsOn("lineage", lineage, { lineage, account }),
    ["Download the audit trail", () => downloadTrail({ lineage, fetchTrail: (body) => asked.post("trail", body, true) })],
  ]);
}

async function openReceipts(lineage) {
  const body = el("div", { class: "body" });
  show(`Receipts of ${lineage}`, body);
  try {
    showReceipts(await owner.receipts(lineage), body);
  } catch (error) {
    body.replaceChildren(refusalPanel(problemOf(error)));
  }
}

async function choose(lineage) {
  chosen = lineage;
  unfolded = 0;
  shown = {};
  close();
  await refreshAll();
}

function showClients({ lineage, clients, next_after: next }) {
  const more = button("More", async () => {
    const page = await owner.clients(lineage, next);
    unfolded = clients.length + page.clients.length;
    showClients({ lineage, clients: [...clients, ...page.clients], next_after: page.next_after });
  });
  const columns = [{ title: "client" }, { title: "left" }, { title: "epsilon spent", numeric: true }, { title: "answers", numeric: true }, { title: "answers left", numeric: true }, { title: "since" }];
  const rows = clients.map((each) => [
    [opener(each.client, `client:${each.client}`, () => openClient(each)), each.display && [" ", el("span", { class: "note" }, each.display)], each.revoked && [" ", el("span", { class: "tag bad" }, "revoked")], each.account.queries_left === 0 && !each.revoked && [" ", el("span", { class: "tag warn" }, "spent")]],
    share(each.account),
    `${figureUp(each.account.spent.epsilon)} of ${figureUp(each.account.limit.epsilon)}`,
    whole(each.releases),
    each.account.unlimited ? "unlimited" : each.account.queries_left === null ? "–" : whole(each.account.queries_left),
    moment(each.created),
  ]);
  replace(
    "clients",
    clients.length === 0 ? el("p", { class: "loading" }, "There is no client yet.") : table("Clients", columns, rows),
    el("div", { class: "buttons" }, openers("client"), next !== null && more, el("span", { class: "note" }, `${counted(clients.length, "client")} of ${lineage}`)),
  );
}

function openClient({ client, display, group, revoked, created, keys, account }) {
  const facts = [
    ...(display ? [["called", display]] : []),
    ...(group ? [["group", group]] : []),
    ...accountFacts(account),
    ["since", moment(created)],
    ["API keys", keys.length ? keys.map((key) => el("div", {}, keyInWords(key))) : "none"],
  ];
  const known = { key: keys.map((key) => key.id) };
  showAccount(`Client ${client}`, facts, revoked ? [] : actsOn("client", client, { given: { client }, account, known }));
}

function showGroups(content) {
  groups = content.groups;
  const columns = [{ title: "group" }, { title: "left" }, { title: "epsilon spent", numeric: true }, { title: "members", numeric: true }];
  const open = ({ group, account, members, created }) =>
    showAccount(
      `Group ${group}`,
      [...accountFacts(account), ["members", whole(members)], ["since", moment(created)]],
      actsOn("group", group, { given: { group }, account }),
    );
  replace(
    "groups",
    groups.length === 0
      ? el("p", { class: "loading" }, "There is no group.")
      : table("Groups", columns, groups.map((each) => [opener(each.group, `group:${each.group}`, () => open(each)), share(each.account), `${figureUp(each.account.spent.epsilon)} of ${figureUp(each.account.limit.epsilon)}`, whole(each.members)])),
    el("div", { class: "buttons" }, openers("group")),
  );
}

function showSpending({ complete, currencies, lineage, clients, of }) {
  const account = lineages.find((each) => each.lineage === of)?.account;
  const limit = account?.limit[account.currency] ?? 0;
  const course = (name, points, most, currency = account?.currency ?? "rho") => {
    const total = points.at(-1)[1];
    const summary = `${name}: ${currency} ${figure(total)} spent, the last of it on ${moment(points.at(-1)[0])}.`;
    const host = el("div", {});
    responsive(host, spendChart(points.map(([time, spent]) => ({ time, total: spent })), most, summary, currency));
    return el("figure", {}, host, el("figcaption", {}, summary));
  };
  const spent = Object.entries(clients).filter(([, points]) => points.length);
  byId("spending-body").replaceChildren(
    ...(lineage.length === 0 ? [el("p", { class: "loading" }, "Nothing has been charged yet.")] : [course(`The lineage ${of}`, lineage, limit)]),
    ...(complete ? [] : [el("p", { class: "notice" }, "More receipts are being read: the newest are not in it yet.")]),
    el("div", { class: "plots" }, spent.map(([name, points]) => course(name, points, Infinity, currencies[name]))),
  );
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

byId("act-close").addEventListener("click", close);
byId("act").addEventListener("close", () => {
  byId("act-body").replaceChildren();
  if (opened !== null) (openerOf(opened) ?? byId("clients-title")).focus();
  opened = null;
});
