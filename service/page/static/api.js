// The service, asked with a key that lives in this object and nowhere else.

const UNREACHABLE = "urn:dpserve:page:unreachable";
const SECONDS = 60;

/** The service said no, or nothing. `problem` is its RFC 9457 document. */
export class Refusal extends Error {
  constructor(problem) {
    super(problem.detail);
    this.problem = problem;
  }

  get kind() {
    return String(this.problem.type).split(":").at(-1);
  }

  /** Whether the same request, sent again as it was, may fare better. */
  get passing() {
    return [0, 429, 503, 504].includes(this.problem.status);
  }
}

export async function ask(path, { key = null, method = "GET", body = null, headers = {}, blob = false } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      body: body === null ? undefined : JSON.stringify(body),
      headers: {
        Accept: "application/json",
        ...(key === null ? {} : { Authorization: `Bearer ${key}` }),
        ...(body === null ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(SECONDS * 1000),
    });
  } catch {
    throw new Refusal({
      type: UNREACHABLE,
      title: "No answer",
      status: 0,
      detail: "The service does not answer. Asking again is safe: the same request is charged once.",
    });
  }
  let content = null;
  if (response.ok && blob) return { content: await response.blob() };
  try {
    content = await response.json();
  } catch {
    // Not JSON: a proxy's page, say. The status is all there is to tell.
  }
  if (response.ok && content !== null) return { content, rehearsal: response.headers.get("dpserve-rehearsal") === "true" };
  throw new Refusal({
    type: "about:blank",
    title: response.statusText,
    status: response.status,
    detail: `The service answered ${response.status}.`,
    ...content,
  });
}

/** A name for one request: sent again under the same name it is answered again and charged once. */
export function requestName() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Every receipt, oldest first, or the first `most`. Returns {receipts, complete}. */
async function everyReceipt(path, key, most = 20000) {
  const receipts = [];
  let after = 0;
  while (after !== null && receipts.length < most) {
    const page = (await ask(`${path}?after=${after}&count=1000`, { key })).content;
    receipts.push(...page.receipts);
    after = page.next_after;
  }
  return { receipts, complete: after === null };
}

export class Account {
  #key;
  #model;

  /** model: the name of the one that is asked. */
  constructor(key, model) {
    this.#key = key;
    this.#model = `models/${encodeURIComponent(model)}`;
  }

  async budget() {
    return (await ask(`${this.#model}/budget`, { key: this.#key })).content;
  }

  async receipts() {
    return everyReceipt(`${this.#model}/budget/receipts`, this.#key);
  }

  /** clip: whether values beyond the bounds are to be clipped to them; null: as in training. */
  async quote(instances, clip) {
    return (await this.#predict("predict?dry_run=true", { instances }, clip, {})).quote;
  }

  /** coverage: of prediction sets; null for none. clip: as for `quote`. */
  async predict(instances, name, coverage, clip) {
    const path = coverage === null ? "predict" : `predict?coverage=${coverage}`;
    return this.#predict(path, { instances, noise: true }, clip, { "Idempotency-Key": name });
  }

  async #predict(path, asked, clip, headers) {
    const body = { ...asked, ...(clip === null ? {} : { clip }) };
    return (await ask(`${this.#model}/${path}`, { key: this.#key, method: "POST", body, headers })).content;
  }

  forget() {
    this.#key = null;
  }
}

/** The names of the models that a key is good for, and which of them to show first. */
export async function modelsOf(key) {
  return (await ask("account", { key })).content;
}

/** The names of all models, and the one to show to whoever has not signed in. */
export async function publicModels() {
  const { content, rehearsal } = await ask("models");
  return { names: content.models, first: content.default ?? content.models[0], defaultModel: content.default, rehearsal };
}

export async function publicModel(name) {
  return (await ask(`models/${encodeURIComponent(name)}`)).content;
}

export class Owner {
  #key;

  constructor(key) {
    this.#key = key;
  }

  async get(path) {
    return (await ask(`api/${path}`, { key: this.#key })).content;
  }

  async post(path, body, blob = false) {
    return (await ask(`api/${path}`, { key: this.#key, method: "POST", body, blob })).content;
  }

  /** The JSON Schema of a request for each act. */
  async acts() {
    const { paths } = (await ask("openapi.json")).content;
    return paths["/api/acts"].post.requestBody.content["application/json"].schema.oneOf;
  }

  async receipts(lineage) {
    return everyReceipt(`api/lineages/${encodeURIComponent(lineage)}/receipts`, this.#key);
  }

  /** The first clients of a lineage. order: "spent" or "name"; match: what they have in their name. */
  async clients(lineage, { count, order, match }) {
    const query = new URLSearchParams({ count, order, match });
    return this.get(`lineages/${encodeURIComponent(lineage)}/clients?${query}`);
  }

  forget() {
    this.#key = null;
  }
}
