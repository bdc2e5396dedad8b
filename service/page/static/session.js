// Signing in and out, and the views between the two. The key lives in one object, which the page forgets when it is left.

import { Refusal } from "./api.js";
import { announce, byId } from "./dom.js";

/** The problem of an error; an error that is no refusal is a fault of the page's, and is raised. */
export function problemOf(error) {
  if (error instanceof Refusal) return error.problem;
  throw error;
}

/**
 * Have the sign-in form work. enter(key) asks with the key and returns what shows the page behind it, or throws a
 * Refusal; leave() empties that page. Returns end(why), which signs out.
 */
export function mountSession({ what, enter, leave }) {
  const input = byId("key");
  const said = byId("key-error");
  let entering = false;
  let inside = false;

  const end = (why = "") => {
    if (inside) leave();
    inside = false;
    for (const body of document.querySelectorAll("#account [id$='-body']")) body.replaceChildren();
    for (const id of ["account", "views", "sign-out"]) byId(id).hidden = true;
    byId("welcome").hidden = false;
    input.value = "";
    said.textContent = why;
    input.focus();
    if (!why) announce("Signed out.");
  };

  const begin = async (event) => {
    event.preventDefault();
    if (entering) return;
    const key = input.value.trim();
    said.textContent = "";
    if (!/^[!-~]+( [!-~]+)*$/.test(key)) {
      said.textContent = key ? `An ${what} has plain characters only.` : `Paste your ${what} here first.`;
      input.focus();
      return;
    }
    entering = true;
    try {
      const show = await enter(key);
      input.value = "";
      inside = true;
      byId("welcome").hidden = true;
      for (const id of ["account", "views", "sign-out"]) byId(id).hidden = false;
      await show();
    } catch (error) {
      const problem = problemOf(error);
      if (inside) end(problem.detail);
      // What the service says to programs, which headers to send, is nothing to whoever typed a key into a page.
      else if (problem.type === "urn:dpserve:problem:unauthenticated") said.textContent = `This ${what} is not good here.`;
      else said.textContent = problem.status === 401 ? `This ${what} is not good here: ${problem.detail}.` : problem.detail;
      input.focus();
      input.select();
    } finally {
      entering = false;
    }
  };

  byId("sign-in").addEventListener("submit", begin);
  byId("sign-out").addEventListener("click", () => end());
  // A page that the browser keeps for the back button must not keep the key.
  window.addEventListener("pagehide", () => end());
  window.addEventListener("hashchange", () => inside && views().some(isNamed) && showView());
  return end;
}

const views = () => [...byId("views").querySelectorAll("a")];
const isNamed = (link) => link.hash === location.hash;

/** Show the view that the address names, or the first one, and move the focus to its heading. */
export function showView() {
  const shown = views().find(isNamed) ?? views()[0];
  for (const link of views()) {
    if (link === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    byId(link.hash.slice(1)).hidden = link !== shown;
  }
  document.querySelector(`${shown.hash} h1`).focus({ preventScroll: true });
  window.scrollTo({ top: 0, behavior: "instant" });
}
