// The owner's page: accounts and what the owner changes of them, and models.

import { actsAbout, close, downloadTrail, forgetActs, keyInWords, labelOf, perform, show, showAccount } from "./acts.js";
import { Owner } from "./api.js";
import { announce, button, byId, el, table } from "./dom.js";
import { counted, figure, moment, percentUp, unitOf, whole } from "./format.js";
import { modelFacts } from "./model.js";
import { showReceipts } from "./receipts.js";
import { refusalPanel } from "./refusal.js";
import { mountSession, problemOf, showView } from "./session.js";

const ALL_EVERY = 15000;
/** Clients that are shown at first, and at most. */
const [FEW, MOST] = [20, 1000];

let owner = null;
let timer = null;
let shown = {};
/** The clients that are shown: so many, of this lineage or of all, in this order, with this in their name. */
const ALL = { count: FEW, lineage: "", order: "spent", match: "" };
let listed = ALL;
let lineages = [];
let groups = [];
/** The JSON Schemas of the acts that the service offers. */
let acts = [];
/** Which account's dialog was opened: its button has the focus again when the dialog is closed. */
let opened = null;

async function enter(key) {
  const candidate = new Owner(key);
  const [, offered] = await Promise.all([candidate.get("lineages"), candidate.acts()]);
  return async () => {
    owner = candidate;
    acts = offered;
    showView();
    await refreshAll();
    announce(`Signed in. ${counted(lineages.length, "lineage")}.`);
    timer = setInterval(() => document.visibilityState === "visible" && refreshAll(), ALL_EVERY);
  };
}

function leave() {
  owner.forget();
  owner = opened = null;
  shown = {};
  listed = ALL;
  byId("client-search").value = "";
  byId("order").value = ALL.order;
  byId("lineage").replaceChildren();
  lineages = groups = acts = [];
  forgetActs();
  clearInterval(timer);
}

/** Show what `load` answers in a section, unless it is what is shown already; or the refusal in its place. */
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
  await refreshPart("lineages", async (asked) => ({ ...(await asked.get("lineages")), ...(await asked.get("models")) }), (content) => {
    showLineages(content);
    showModels(content);
  });
  await Promise.all([refreshPart("clients", listedClients, showClients), refreshPart("groups", listedGroups, showGroups)]);
}

const path = (lineage) => `lineages/${encodeURIComponent(lineage)}`;

const shareOf = ({ shown_in: name, limit, spent }) => Math.min(1, spent[name] / (limit[name] || 1e-12));
const ORDERS = {
  spent: (one, other) => shareOf(other.account) - shareOf(one.account),
  name: (one, other) => (one.client < other.client ? -1 : 1),
};

/** The first clients of all lineages: each gives its own, by what it counts, and they are put in order by what is read. */
async function listedClients(asked) {
  const wanted = listed;
  const read = async ({ lineage }) => {
    const page = await asked.clients(lineage, wanted);
    return { ...page, clients: page.clients.map((each) => ({ ...each, lineage })) };
  };
  const pages = await Promise.all(lineages.filter(({ lineage }) => [lineage, ""].includes(wanted.lineage)).map(read));
  const clients = pages.flatMap((page) => page.clients).sort(ORDERS[wanted.order]).slice(0, wanted.count);
  return { wanted, clients, total: pages.reduce((sum, page) => sum + page.total, 0) };
}

async function listedGroups(asked) {
  const read = async ({ lineage }) => (await asked.get(`${path(lineage)}/groups`)).groups.map((each) => ({ ...each, lineage }));
  return (await Promise.all(lineages.map(read))).flat();
}

/** A bar and an amount. alarm: whether the owner must act on it. */
function spentOf(account, alarm = false) {
  const bar = el("i", {});
  bar.style.width = `${100 * shareOf(account)}%`;
  return el(
    "span",
    { class: alarm ? "spent-bar alarm" : "spent-bar" },
    el("span", { class: "track-bar", "aria-hidden": "true" }, bar),
    el("span", {}, unitOf(account).spent),
  );
}

/** What a client has of a model, and what it may still buy of it. */
function standing({ model, paid, price, answers_left: left }, unit) {
  if (left !== null) return el("span", { class: "standing" }, el("span", { class: left ? "tag" : "tag warn" }, model), ` ${counted(left, "answer")} left`);
  const has = paid ? " paid for" : price === null ? "" : ` ${price.admitted ? "for" : "not covered:"} ${unit.say(price.shown_cost)}`;
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

/** Ask for an act. more: as `perform` has it, with the account's lineage; an act without one asks for the lineage. */
function act(schema, { lineage = null, given = {}, known = {}, ...more } = {}) {
  const asked = owner;
  const names = lineages.map((each) => each.lineage).sort((one, other) => (other === listed.lineage) - (one === listed.lineage));
  perform({
    schema,
    given: { lineage: lineage ?? names[0], ...given },
    lineages: lineage === null ? names : [],
    known: {
      group: groups.filter((each) => [each.lineage, null].includes(lineage)).map((each) => each.group),
      lineage: names.filter((each) => each !== lineage),
      ...known,
    },
    post: (path, body) => asked.post(path, body),
    done: () => refreshAll(),
    ...more,
  });
}

/** What can be done with an account: [[label, act]]. */
const actsOn = (scope, subject, more) => actsAbout(acts, scope).map((schema) => [labelOf(schema), () => act(schema, { subject, ...more })]);

/** The buttons that open an account of a scope. */
const openers = (scope) => lineages.length > 0 && actsAbout(acts, scope, true).map((schema) => opener(labelOf(schema), schema.properties.act.const, () => act(schema)));

function accountFacts(account) {
  return [["spent", unitOf(account).spent], ["delta", figure(account.delta)]];
}

function showLineages({ lineages: found, models }) {
  lineages = found;
  const names = lineages.map((each) => each.lineage);
  if (!names.includes(listed.lineage)) listed = { ...listed, lineage: "" };
  byId("choose-lineage").hidden = names.length < 2;
  byId("lineage").replaceChildren(el("option", { value: "" }, "All"), ...names.map((name) => el("option", { value: name }, name)));
  byId("lineage").value = listed.lineage;
  const [served, others] = [true, false].map((is) => lineages.filter((each) => each.served === is));
  const open = document.querySelector("#lineages-body details")?.open === true;
  const rest = others.length > 0 && el("details", { open: open || served.length === 0 }, el("summary", {}, `Not served here: ${counted(others.length, "lineage")}`), lineageTable("Lineages that are not served here", others, models));
  replace("lineages", lineages.length === 0 && el("p", { class: "loading" }, "The ledger has no lineage yet."), served.length > 0 && lineageTable("Lineages", served, models), rest);
}

function lineageTable(caption, listed, models) {
  const row = (each) => {
    const asked = models.filter(({ lineage }) => lineage === each.lineage);
    const refuses = asked.some((model) => isRefused(model, each));
    const isPaid = each.served && hasBudget(each) && shareOf(each.account) === 1 && asked.every(({ price }) => price);
    return [
      [
        opener(each.lineage, `lineage:${each.lineage}`, () => openLineage(each)),
        each.account.status === "unproven" && [" ", el("span", { class: "tag warn" }, "unproven")],
        refuses && [" ", el("span", { class: "tag bad" }, "answers are refused")],
      ],
      [
        hasBudget(each) && spentOf(each.account, refuses),
        isPaid && el("span", { class: "note method" }, "as planned: its models are paid for, and answer on"),
        each.blocks > 0 && el("span", { class: "note method" }, `${counted(each.blocks, "block")}, each with its budget`),
      ],
      whole(each.releases),
      hasBudget(each) ? percentUp(each.account.posterior_belief_bound.when_spent) : "–",
    ];
  };
  return table(caption, [{ title: "lineage" }, { title: "spent", kind: "broad" }, { title: "charges", numeric: true }, { title: "belief, at most", numeric: true }], listed.map(row), { stacks: true });
}

/** Whether what is left of a lineage does not pay for one more answer of a model; of blocks their own budgets say so. */
function isRefused({ price_per_row: price, blocks }, { account: { currency, remaining } }) {
  return !blocks?.length && price[currency] > 0 && price[currency] > remaining[currency];
}

// The records that lie in no block with a name may be none, and have no budget.
function hasBudget({ account, blocks }) {
  return blocks === 0 || account.limit[account.currency] > 0 || account.spent[account.currency] > 0;
}

function openLineage({ lineage, account, created, blocks }) {
  const asked = owner;
  const facts = hasBudget({ account, blocks }) ? accountFacts(account) : [];
  showAccount(`Lineage ${lineage}`, [...facts, ["since", moment(created)]], [
    ...(blocks > 0 ? [["Show its blocks", () => openPart(`Blocks of ${lineage}`, () => asked.get(`${path(lineage)}/blocks`), showBlocks)]] : []),
    ["Show its receipts", () => openPart(`Receipts of ${lineage}`, () => asked.receipts(lineage), (page, body) => showReceipts(page, unitOf(account), body))],
    ...actsOn("lineage", lineage, { lineage }),
    ["Download the audit trail", () => downloadTrail({ lineage, fetchTrail: (body) => asked.post("trail", body, true) })],
  ]);
}

/** Show in the dialog what `load` answers. */
async function openPart(title, load, fill) {
  const body = el("div", { class: "body" });
  show(title, body);
  try {
    fill(await load(), body);
  } catch (error) {
    body.replaceChildren(refusalPanel(problemOf(error)));
  }
}

/** The lineage of an account, in a list of those of several. */
const lineageOf = ({ lineage }) => lineages.length > 1 && listed.lineage === "" && el("span", { class: "note method" }, lineage);

function showClients({ wanted, clients, total }) {
  if (wanted !== listed) return; // others are wanted by now
  const rows = clients.map((each) => [
    [
      opener(called(each.display || each.client, each.client, each.display), `client:${each.lineage}:${each.client}`, () => openClient(each)),
      each.revoked && [" ", el("span", { class: "tag bad" }, "revoked")],
      !each.revoked && isIdle(each) && [" ", el("span", { class: "tag warn" }, "can buy nothing")],
      lineageOf(each),
    ],
    spentOf(each.account),
    each.revoked || each.models.length === 0 ? "–" : el("span", { class: "standings" }, each.models.map((one) => standing(one, unitOf(each.account)))),
  ]);
  const columns = [{ title: "client" }, { title: "spent", kind: "broad" }, { title: "models", kind: "broad" }];
  const more = button("More", () => list({ count: Math.min(MOST, 2 * listed.count) }));
  const place = clients.length < total ? `${whole(clients.length)} of ${counted(total, "client")}` : counted(total, "client");
  replace(
    "clients",
    el("div", { class: "buttons" }, openers("client"), el("span", { class: "note" }, place)),
    clients.length === 0 ? el("p", { class: "loading" }, wanted.match ? "No client has this in its name." : "There is no client yet.") : table("Clients", columns, rows, { stacks: true }),
    clients.length < total && (wanted.count < MOST ? el("div", { class: "buttons" }, more) : el("p", { class: "note" }, "Find the others by their names.")),
  );
}

/** List other clients. The fields by which they are chosen stay where they are. */
async function list(change) {
  listed = { ...listed, ...change };
  await refreshPart("clients", listedClients, showClients);
}

function openClient({ lineage, client, display, group, revoked, created, keys, account, models }) {
  const facts = [
    ...(display ? [["called", display]] : []),
    ["lineage", lineage],
    ...(group ? [["group", group]] : []),
    ...accountFacts(account),
    ...models.map((each) => ["model", standing(each, unitOf(account))]),
    ["since", moment(created)],
    ["API keys", keys.length ? keys.map((key) => el("div", {}, keyInWords(key))) : "none"],
  ];
  const known = { key: keys.map((key) => key.id) };
  showAccount(`Client ${client}`, facts, revoked ? [] : actsOn("client", client, { lineage, given: { client }, known }));
}

function showBlocks({ complete, blocks }, body) {
  const columns = [{ title: "block" }, { title: "spent", kind: "broad" }, { title: "by the models", kind: "broad" }];
  const model = (unit, { model: id, name, mechanism, spent, releases }) => `${name ?? id.slice(0, 8)} (${mechanism}): ${unit.isSum ? unit.say(spent) : counted(releases, "release")}`;
  const paid = ({ models, account }) => (models.length === 0 ? "–" : el("span", { class: "standings" }, models.map((one) => el("span", { class: "standing" }, model(unitOf(account), one)))));
  body.replaceChildren(
    table("Blocks", columns, blocks.map((each) => [each.block, spentOf(each.account), paid(each)]), { stacks: true }),
    complete ? "" : el("p", { class: "notice" }, "More receipts are being read: the newest models are not in it yet."),
  );
}

function showGroups(found) {
  groups = found;
  const columns = [{ title: "group" }, { title: "spent", kind: "broad" }, { title: "members", numeric: true }];
  const open = ({ lineage, group, account, members, created }) =>
    showAccount(
      `Group ${group}`,
      [["lineage", lineage], ...accountFacts(account), ["members", whole(members)], ["since", moment(created)]],
      actsOn("group", group, { lineage, given: { group } }),
    );
  const row = (each) => [[opener(called(each.display || each.group, each.group, each.display), `group:${each.lineage}:${each.group}`, () => open(each)), lineageOf(each)], spentOf(each.account), whole(each.members)];
  replace(
    "groups",
    el("div", { class: "buttons" }, openers("group")),
    groups.length === 0 ? el("p", { class: "loading" }, "There is no group.") : table("Groups", columns, groups.map(row), { stacks: true }),
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

const end = mountSession({ what: "admin key", enter, leave });

for (const [id, field] of [["client-search", "match"], ["lineage", "lineage"], ["order", "order"]]) {
  byId(id).addEventListener("input", ({ target }) => list({ [field]: target.value.trim(), count: FEW }));
}
byId("act-close").addEventListener("click", close);
byId("act").addEventListener("close", () => {
  byId("act-body").replaceChildren();
  if (opened !== null) (openerOf(opened) ?? byId("clients-title")).focus();
  opened = null;
});
