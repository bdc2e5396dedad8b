// The owner's page: accounts and what the owner changes of them, and models.

import { actsAbout, close, downloadTrail, forgetActs, keyInWords, labelOf, perform, show, showAccount } from "./acts.js";
import { Owner } from "./api.js";
import { button, byId, el, table } from "./dom.js";
import { counted, figure, figureUp, moment, percentUp, whole } from "./format.js";
import { modelFacts } from "./model.js";
import { showReceipts } from "./receipts.js";
import { refusalPanel } from "./refusal.js";
import { arrive, mountSession, problemOf } from "./session.js";

const ALL_EVERY = 15000;
/** Clients that are found without a field to search by. */
const FEW = 10;

let owner = null;
let timer = null;
let shown = {};
/** How many clients were asked for by "More": a refresh shows as many. */
let unfolded = 0;
/** What the clients that are shown have in their name. */
let sought = "";
/** The lineage whose clients are shown: the owner's choice, or the one that is served. */
let chosen = null;
let lineages = [];
let groups = [];
/** The models that are served now. */
let served = [];
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
    await refreshAll();
    timer = setInterval(() => document.visibilityState === "visible" && refreshAll(), ALL_EVERY);
  };
}

function leave() {
  owner.forget();
  owner = null;
  shown = {};
  unfolded = 0;
  forgetSought();
  chosen = opened = null;
  lineages = groups = acts = [];
  forgetActs();
  clearInterval(timer);
}

function forgetSought() {
  sought = byId("client-search").value = "";
}

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

async function refreshAll() {
  await Promise.all([
    refreshPart("lineages", (asked) => asked.get("lineages"), showLineages),
    refreshPart("models", (asked) => asked.get("models"), showModels),
  ]);
  if (lineages.length === 0) return;
  await Promise.all([
    refreshPart("clients", clientsOfChosen, showClients),
    refreshPart("groups", (asked) => asked.get(`${path()}/groups`), showGroups),
    refreshPart("blocks", (asked) => asked.get(`${path()}/blocks`), showBlocks),
  ]);
}

const path = () => `lineages/${encodeURIComponent(chosen)}`;

async function clientsOfChosen(asked) {
  const [lineage, match] = [chosen, sought];
  let { clients, next_after: next, total } = await asked.clients(lineage, { match });
  while (next !== null && clients.length < unfolded) {
    const page = await asked.clients(lineage, { after: next, match });
    clients = [...clients, ...page.clients];
    next = page.next_after;
  }
  return { lineage, clients, next_after: next, total, match };
}

function spentOf({ currency, limit, spent }) {
  const part = limit[currency] > 0 ? Math.min(1, spent[currency] / limit[currency]) : 1;
  const bar = el("i", {});
  bar.style.width = `${100 * part}%`;
  return el(
    "span",
    { class: part >= 1 ? "spent-bar full" : "spent-bar" },
    el("span", { class: "track-bar", "aria-hidden": "true" }, bar),
    el("span", {}, `epsilon ${figureUp(spent.epsilon)} of ${figureUp(limit.epsilon)}`),
    currency === "rho" && el("span", { class: "note" }, `rho ${figure(spent.rho)} of ${figure(limit.rho)}`),
  );
}

/** An amount, epsilon first and rho beside it. */
const amount = ({ epsilon, rho }) => `epsilon ${figureUp(epsilon)}${rho === null ? "" : ` (rho ${figure(rho)})`}`;

/** What a client has of a model, and what it may still buy of it. */
function standing({ model, paid, price, answers_left: left }) {
  if (left !== null) return el("span", { class: "standing" }, el("span", { class: left ? "tag" : "tag warn" }, model), ` ${counted(left, "answer")} left`);
  const has = paid ? " paid for" : price === null ? "" : ` ${price.admitted ? "for" : "not covered:"} ${amount(price.cost)}`;
  return el("span", { class: "standing" }, el("span", { class: paid ? "tag good" : "tag quiet" }, model), has);
}

/** Whether nothing that is served can be bought, and nothing is paid for. */
const isIdle = ({ models }) => models.length > 0 && models.every(({ paid, price, answers_left: left }) => !paid && !price?.admitted && !left);

/** The name that people know, and the id in small letters where that is another. */
const called = (label, id, display) => (display ? [label, el("span", { class: "note method" }, id)] : label);

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
  byId(`${name}-body`).replaceChildren(...content.filter(Boolean));
  if (focused !== undefined) openerOf(focused)?.focus();
}

/** Ask for an act on a lineage, by default the one that is shown. more: as `perform` has it. */
function act(schema, { given = {}, known = {}, ...more } = {}) {
  const asked = owner;
  const lineage = more.lineage ?? chosen;
  perform({
    schema,
    given: { lineage, ...given },
    known: {
      group: groups.map((each) => each.group),
      lineage: lineages.map((each) => each.lineage).filter((each) => each !== lineage),
      ...known,
    },
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
  return [
    ["epsilon spent", `${figureUp(account.spent.epsilon)} of ${figureUp(account.limit.epsilon)} at delta = ${figure(account.delta)}`],
    ...(account.currency === "rho" ? [["rho spent", `${figure(account.spent.rho)} of ${figure(account.limit.rho)}`]] : []),
  ];
}

function showLineages(content) {
  lineages = content.lineages;
  if (!lineages.some((each) => each.lineage === chosen)) chosen = (lineages.find((each) => each.served) ?? lineages[0])?.lineage ?? null;
  const [served, others] = [true, false].map((is) => lineages.filter((each) => each.served === is));
  const open = document.querySelector("#lineages-body details")?.open === true;
  const rest = others.length > 0 && el("details", { open: open || served.length === 0 }, el("summary", {}, `Not served here: ${counted(others.length, "lineage")}`), lineageTable("Lineages that are not served here", others));
  replace("lineages", lineages.length === 0 && el("p", { class: "loading" }, "The ledger has no lineage yet."), served.length > 0 && lineageTable("Lineages", served), rest);
}

function lineageTable(caption, listed) {
  return table(
    caption,
    [{ title: "lineage" }, { title: "spent" }, { title: "charges", numeric: true }, { title: "belief, at most", numeric: true }],
    listed.map((each) => [
      [opener(each.lineage, `lineage:${each.lineage}`, () => openLineage(each)), each.served && [" ", el("span", { class: "tag" }, "served")], each.account.status === "unproven" && [" ", el("span", { class: "tag warn" }, "unproven")]],
      [hasBudget(each) && spentOf(each.account), each.blocks > 0 && el("span", { class: "note" }, `${counted(each.blocks, "block")}, each with its budget`)],
      whole(each.releases),
      hasBudget(each) ? percentUp(each.account.posterior_belief_bound.when_spent) : "–",
    ]),
    { stacks: true },
  );
}

// The records that lie in no block with a name may be none, and have no budget.
function hasBudget({ account, blocks }) {
  return blocks === 0 || account.limit[account.currency] > 0 || account.spent[account.currency] > 0;
}

function openLineage({ lineage, account, created, blocks }) {
  const asked = owner;
  const facts = [...(blocks > 0 ? [["blocks", whole(blocks)]] : []), ...(hasBudget({ account, blocks }) ? accountFacts(account) : [])];
  showAccount(`Lineage ${lineage}`, [...facts, ["since", moment(created)]], [
    ...(lineage === chosen ? [] : [[blocks > 0 ? "Show its clients and blocks" : "Show its clients", () => choose(lineage)]]),
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
  forgetSought();
  shown = {};
  close();
  await refreshAll();
}

function showClients({ lineage, clients, next_after: next, total, match }) {
  if (match !== sought) return; // something else is sought by now
  byId("clients-search").hidden = !sought && total <= FEW;
  const more = button("More", async () => {
    const page = await owner.clients(lineage, { after: next, match });
    unfolded = clients.length + page.clients.length;
    showClients({ ...page, lineage, match, clients: [...clients, ...page.clients] });
  });
  const columns = [{ title: "client" }, { title: "spent" }, { title: "models" }];
  const rows = clients.map((each) => [
    [
      opener(called(each.display || each.client, each.client, each.display), `client:${each.client}`, () => openClient(each)),
      each.revoked && [" ", el("span", { class: "tag bad" }, "revoked")],
      !each.revoked && isIdle(each) && [" ", el("span", { class: "tag warn" }, "can buy nothing")],
    ],
    spentOf(each.account),
    each.revoked ? "–" : el("span", { class: "standings" }, each.models.map(standing)),
  ]);
  const none = sought ? "No client has this in its name." : "There is no client yet.";
  const shownOf = clients.length < total ? `${whole(clients.length)} of ${counted(total, "client")} of ${lineage}` : `${counted(total, "client")} of ${lineage}`;
  replace(
    "clients",
    clients.length === 0 ? el("p", { class: "loading" }, none) : table("Clients", columns, rows, { stacks: true }),
    el("div", { class: "buttons" }, openers("client"), next !== null && more, el("span", { class: "note" }, shownOf)),
  );
}

/** Show the clients that have what was typed in their name. The field stays where it is while they are shown anew. */
async function search() {
  sought = byId("client-search").value.trim();
  unfolded = 0;
  await refreshPart("clients", clientsOfChosen, showClients);
}

function openClient({ client, display, group, revoked, created, keys, account, models }) {
  const facts = [
    ...(display ? [["called", display]] : []),
    ...(group ? [["group", group]] : []),
    ...accountFacts(account),
    ...models.map((each) => ["model", standing(each)]),
    ["since", moment(created)],
    ["API keys", keys.length ? keys.map((key) => el("div", {}, keyInWords(key))) : "none"],
  ];
  const known = { key: keys.map((key) => key.id) };
  showAccount(`Client ${client}`, facts, revoked ? [] : actsOn("client", client, { given: { client }, account, known }));
}

function showBlocks({ complete, blocks }) {
  byId("blocks").hidden = blocks.length === 0;
  const columns = [{ title: "block" }, { title: "spent" }, { title: "left" }, { title: "by the models" }];
  const model = (account, { model: id, name, mechanism, spent }) => `${name ?? id.slice(0, 8)} (${mechanism}): ${account.currency} ${figure(spent)}`;
  const left = ({ epsilon, rho }) => `epsilon ${figure(epsilon)}${rho === null ? "" : ` (rho ${figure(rho)})`}`;
  const listed = (each) => (each.models.length === 0 ? "–" : el("span", { class: "standings" }, each.models.map((one) => el("span", { class: "standing" }, model(each.account, one)))));
  replace(
    "blocks",
    blocks.length > 0 && table("Blocks", columns, blocks.map((each) => [each.block, spentOf(each.account), left(each.account.remaining), listed(each)]), { stacks: true }),
    !complete && el("p", { class: "notice" }, "More receipts are being read: the newest models are not in it yet."),
  );
}

function showGroups(content) {
  groups = content.groups;
  const columns = [{ title: "group" }, { title: "spent" }, { title: "members", numeric: true }];
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
      : table("Groups", columns, groups.map((each) => [opener(called(each.display || each.group, each.group, each.display), `group:${each.group}`, () => open(each)), spentOf(each.account), whole(each.members)]), { stacks: true }),
    el("div", { class: "buttons" }, openers("group")),
  );
}

function showModels({ models }) {
  served = models;
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

const end = mountSession({ what: "admin key", enter, leave });

byId("client-search").addEventListener("input", search);
byId("act-close").addEventListener("click", close);
byId("act").addEventListener("close", () => {
  byId("act-body").replaceChildren();
  if (opened !== null) (openerOf(opened) ?? byId("clients-title")).focus();
  opened = null;
});
