// The client's page: sign in, look, ask. The key lives in one object, which signing out or leaving the page empties.

import { showAccount, showSpend } from "./account.js";
import { Account, modelsOf, publicModel, publicModels } from "./api.js";
import { mountAsk } from "./ask.js";
import { byId, el } from "./dom.js";
import { chance, figure, whole } from "./format.js";
import { modelFacts } from "./model.js";
import { showReceipts } from "./receipts.js";
import { showSnippets } from "./snippets.js";
import { exampleProblem, refusalPanel } from "./refusal.js";
import { arrive, mountSession, problemOf } from "./session.js";

let account = null;
let model = null;
let budget = null;
let rehearsal = false;
let defaultModel = null;

async function showModels() {
  const about = byId("about");
  try {
    const found = await publicModels();
    const { names, first } = found;
    ({ rehearsal, defaultModel } = found);
    await showModel(first);
    const others = names.filter((name) => name !== first);
    if (others.length > 0) about.append(el("p", { class: "note" }, `Also served here: ${others.join(", ")}.`));
  } catch (error) {
    about.replaceChildren(refusalPanel(problemOf(error), { again: showModels }));
  }
  about.setAttribute("aria-busy", "false");
}

/** Read a model's public part, and show it. */
async function showModel(name) {
  if (model?.name === name) return;
  model = await publicModel(name);
  byId("about").replaceChildren(...modelFacts(model));
  byId("notices").replaceChildren();
  document.title = `${model.name} · dpserve`;
  if (rehearsal) notice("This is a rehearsal: the ledger may lose charges. Nothing here is to be relied upon.");
  if (model.mechanism_status === "unproven") {
    notice("Unproven: the guarantee of this model’s mechanism is claimed and not proven. Nothing is promised about any record.");
  }
}

function notice(text) {
  byId("notices").append(el("p", { class: "notice" }, text));
}

/** The problem to show; a key that is no longer good ends the session. */
function refused(error) {
  const problem = problemOf(error);
  if (problem.status === 401) end(`${problem.detail}. You were signed out.`);
  return problem;
}

async function enter(key) {
  const { models, default: first } = await modelsOf(key);
  const candidate = new Account(key, first);
  await showModel(first);
  const found = await candidate.budget();
  return async () => {
    account = candidate;
    showChooser(models, first);
    await showEverything(found);
  };
}

async function showEverything(found) {
  show(found);
  showSnippets(model, model.name === defaultModel);
  mountAsk({ account, model, budget: () => budget, spent: refresh, refused });
  const count = found.unlimited ? "Unlimited answers" : found.queries_left === null ? null : `${whole(found.queries_left)} answers left`;
  const left = count === null ? "" : ` ${count}.`;
  arrive(`Your account with ${model.name}`, `Signed in.${left}`);
  await refreshReceipts();
}

/** One sign-in serves every model that the key is good for. */
function showChooser(names, chosen) {
  const body = byId("models-body");
  byId("models").hidden = names.length < 2;
  const select = el("select", { id: "model" }, names.map((name) => el("option", { value: name }, name)));
  select.value = chosen;
  select.addEventListener("change", async () => {
    select.disabled = true;
    try {
      const candidate = account.with(select.value);
      await showModel(select.value);
      const found = await candidate.budget();
      account.forget();
      account = candidate;
      await showEverything(found);
    } catch (error) {
      byId("ask-body").replaceChildren(refusalPanel(refused(error), {}));
    } finally {
      select.disabled = false;
    }
  });
  body.replaceChildren(el("div", { class: "choice" }, el("label", { class: "label", for: "model" }, "Model"), select));
}

function leave() {
  account.forget();
  account = null;
  budget = null;
  for (const id of ["gauge", "words"]) byId(id).replaceChildren();
}

function show(found) {
  budget = found;
  showAccount(found, model);
  showExample(exampleProblem(found));
  byId("foot").textContent =
    `Every epsilon here is at delta = ${figure(found.delta)}, ${chance(found.delta)}, by the ${found.analysis}. ` +
    "Bounds are rounded up; amounts of rho are exact to twelve decimals, and shown to four digits.";
}

/** What is open, or has the focus, stays so when the account is read again. */
function showExample(problem) {
  const body = byId("refusal-body");
  const open = body.querySelector("details[open]") !== null;
  const focused = body.contains(document.activeElement) ? document.activeElement.localName : null;
  body.replaceChildren(refusalPanel(problem, { example: true }));
  body.querySelector("details").open = open;
  if (focused) body.querySelector(focused)?.focus();
}

async function refreshReceipts() {
  if (account === null) return;
  try {
    const page = await account.receipts();
    showReceipts(page);
    showSpend(page, budget);
  } catch (error) {
    const panel = refusalPanel(refused(error), { again: refreshReceipts });
    byId("receipts-body").replaceChildren(panel);
  }
}

async function refresh() {
  if (account === null) return;
  try {
    show(await account.budget());
  } catch (error) {
    refused(error);
    return;
  }
  await refreshReceipts();
}

const end = mountSession({ what: "API key", enter, leave });
await showModels();
