// The client's page: sign in, ask, look. The key lives in objects that signing out or leaving the page empties.

import { showAccount, showSpend, standingOf } from "./account.js";
import { Account, modelsOf, publicModel, publicModels } from "./api.js";
import { mountAsk } from "./ask.js";
import { announce, byId, el } from "./dom.js";
import { unitOf } from "./format.js";
import { modelFacts } from "./model.js";
import { showReceipts } from "./receipts.js";
import { showSnippets } from "./snippets.js";
import { refusalPanel } from "./refusal.js";
import { mountSession, problemOf, showView } from "./session.js";

/** The models that the key is good for: {model, account, budget}, null for a budget that could not be read. */
let mine = [];
/** The one of them that is asked. */
let chosen = null;
let rehearsal = false;
let defaultModel = null;

async function showModels() {
  const about = byId("about");
  try {
    const found = await publicModels();
    const { names, first } = found;
    ({ rehearsal, defaultModel } = found);
    const model = await publicModel(first);
    about.replaceChildren(...modelFacts(model));
    showNotices(model);
    const others = names.filter((name) => name !== first);
    if (others.length > 0) about.append(el("p", { class: "note" }, `Also served here: ${others.join(", ")}.`));
  } catch (error) {
    about.replaceChildren(refusalPanel(problemOf(error), { again: showModels }));
  }
  about.setAttribute("aria-busy", "false");
}

function showNotices(model) {
  document.title = `${model.name} · dpserve`;
  const said = [
    rehearsal && "This is a rehearsal: the ledger may lose charges. Nothing here is to be relied upon.",
    model.mechanism_status === "unproven" && "Unproven: the guarantee of this model’s mechanism is claimed and not proven. Nothing is promised about any record.",
  ];
  byId("notices").replaceChildren(...said.filter(Boolean).map((text) => el("p", { class: "notice" }, text)));
}

/** The problem to show; a key that is no longer good ends the session. */
function refused(error) {
  const problem = problemOf(error);
  if (problem.status === 401) end(`${problem.detail}. You were signed out.`);
  return problem;
}

async function enter(key) {
  const { models: names, default: first } = await modelsOf(key);
  const found = await Promise.all(names.map(async (name) => ({ model: await publicModel(name), account: new Account(key, name), budget: null })));
  const entered = found[names.indexOf(first)];
  entered.budget = await entered.account.budget();
  return async () => {
    mine = found;
    choose(entered);
    showView();
    announce(`Signed in. ${standingOf(entered.model, entered.budget)}.`);
    await refresh();
  };
}

/** Ask this model from now on. */
function choose(each) {
  chosen = each;
  const { account, model } = each;
  showNotices(model);
  byId("ask-title").textContent = `Ask ${model.name}`;
  showSnippets(model, model.name === defaultModel);
  showStandings();
  showAccount(model, each.budget);
  mountAsk({ account, model, budget: () => each.budget, spent: refresh, refused });
}

/** Ask another model from now on, if its account can be read. */
async function change(each, input) {
  try {
    each.budget = await each.account.budget();
    if (!input.checked) return;
    choose(each);
    await refresh();
  } catch (error) {
    byId("ask-body").replaceChildren(refusalPanel(refused(error)));
  }
}

/** Only what is left changes in the list of models: who is on it stays there. */
function showStandings() {
  if (byId("models-body").childElementCount === 0) byId("models-body").append(modelList());
  mine.forEach(({ model, budget }, place) => (byId(`standing-${place}`).textContent = standingOf(model, budget)));
}

/** A line for each model: what it answers, and what is left. One sign-in serves all that the key is good for. */
function modelList() {
  return el(
    "fieldset",
    { class: "models" },
    el("legend", { class: "visually-hidden" }, "Model"),
    mine.map((each, place) => {
      const input = mine.length > 1 && el("input", { type: "radio", name: "model", checked: each === chosen });
      if (input) input.addEventListener("change", () => change(each, input));
      return el(
        mine.length > 1 ? "label" : "p",
        {},
        input,
        el("span", {}, mine.length > 1 && [el("strong", {}, each.model.name), " "], el("span", { class: "left", id: `standing-${place}` }), " ", el("span", { class: "note" }, answersOf(each.model))),
      );
    }),
  );
}

const MOST_NAMED = 4;

/** The answers of a model, in words: its classes, or the names of its numbers. */
function answersOf({ classes, outputs }) {
  const names = classes.length > 0 ? classes : outputs.map(({ name }) => name);
  if (names.length > MOST_NAMED) return `${names.slice(0, MOST_NAMED).join(", ")} or ${names.length - MOST_NAMED} more`;
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names.join();
}

function leave() {
  for (const { account } of mine) account.forget();
  mine = [];
  chosen = null;
}

/** Read all accounts again, the chosen one first: models may share one. */
async function refresh() {
  const asked = chosen;
  if (asked === null) return;
  try {
    asked.budget = await asked.account.budget();
    if (chosen !== asked) return;
    showStandings();
    showAccount(asked.model, asked.budget);
    const page = await asked.account.receipts();
    if (chosen !== asked) return;
    showReceipts(page, unitOf(asked.budget), byId("receipts-body"));
    showSpend(page, asked.budget);
  } catch (error) {
    const panel = refusalPanel(refused(error), { again: refresh });
    if (chosen === asked) byId("receipts-body").replaceChildren(panel);
  }
  await Promise.all(mine.filter((each) => each !== asked).map(readAnother));
}

async function readAnother(each) {
  try {
    each.budget = await each.account.budget();
  } catch (error) {
    problemOf(error);
    each.budget = null;
  }
  if (mine.includes(each)) showStandings();
}

const end = mountSession({ what: "API key", enter, leave });
await showModels();
