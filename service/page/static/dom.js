// Elements made of text and attributes only: nothing that the service says is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (/^on|^style$|^srcdoc$/i.test(name)) throw new TypeError(`${name} is not an attribute to set here`);
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  const node = document.getElementById(id);
  if (node === null) throw new Error(`the page has no ${id}`);
  return node;
}

/** A button that runs `act` and cannot be pressed again meanwhile. */
export function button(label, act, attributes = {}) {
  const node = el("button", { type: "button", ...attributes }, label);
  node.addEventListener("click", async () => {
    if (node.getAttribute("aria-disabled") === "true") return;
    node.setAttribute("aria-disabled", "true");
    try {
      await act();
    } finally {
      node.removeAttribute("aria-disabled");
    }
  });
  return node;
}

/**
 * A table whose first column names its rows. columns: [{title, numeric, hidden, kind}]; rows: lists of cells. stacks:
 * whether a small screen shows the cells of a row below each other, each after its title.
 */
export function table(caption, columns, rows, { stacks = false } = {}) {
  // A table whose parts are laid out as blocks is one to the eye alone, unless its parts say what they are.
  const role = (name) => (stacks ? { role: name } : {});
  const cell = (content, column, tag) =>
    el(
      tag,
      {
        class: classOf(column),
        scope: tag === "th" ? "row" : null,
        "data-title": stacks && tag === "td" ? column.title : null,
        ...role(tag === "th" ? "rowheader" : "cell"),
      },
      content,
    );
  return scrolling(
    caption,
    el(
      "table",
      { class: stacks ? "stacks" : null, ...role("table") },
      el("caption", { class: "visually-hidden" }, caption),
      el(
        "thead",
        role("rowgroup"),
        el(
          "tr",
          role("row"),
          columns.map((column) =>
            el(
              "th",
              { scope: "col", class: classOf(column), ...role("columnheader") },
              column.hidden ? el("span", { class: "visually-hidden" }, column.title) : column.title,
            ),
          ),
        ),
      ),
      el(
        "tbody",
        role("rowgroup"),
        rows.map((row) => el("tr", role("row"), row.map((content, place) => cell(content, columns[place], place ? "td" : "th")))),
      ),
    ),
  );
}

/** A frame for what may be wider than the screen: the keyboard reaches it, unless it is seen that nothing scrolls. */
function scrolling(label, content) {
  const reachable = { role: "group", "aria-label": label, tabindex: "0" };
  const frame = el("div", { class: "scrolling", ...reachable }, content);
  const sizes = new ResizeObserver(() => {
    const scrolls = frame.scrollWidth > frame.clientWidth;
    for (const [name, value] of Object.entries(reachable)) {
      if (scrolls) frame.setAttribute(name, value);
      else if (document.activeElement !== frame) frame.removeAttribute(name);
    }
  });
  sizes.observe(frame);
  sizes.observe(content);
  return frame;
}

function classOf({ numeric, kind }) {
  return [numeric && "number", kind].filter(Boolean).join(" ") || null;
}

/** Say something to who cannot see that it happened. */
export function announce(text) {
  byId("status").textContent = text;
}
