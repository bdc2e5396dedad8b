// Receipts, newest first, a page at a time.

import { announce, button, el, table } from "./dom.js";
import { counted, figure, moment, whole } from "./format.js";

const PAGE = 10;
const COLUMNS = [
  { title: "receipt" },
  { title: "time" },
  { title: "model" },
  { title: "mechanism" },
  { title: "rows", numeric: true },
  { title: "hash" },
];

/** complete: whether these are all. unit: of the account's amounts. body: where to show them. */
export function showReceipts({ receipts, complete }, unit, body) {
  if (receipts.length === 0) {
    const none = "There is none yet. The first answer that is paid for makes one.";
    body.replaceChildren(el("p", { class: "loading" }, none));
    return;
  }
  const withClients = receipts[0].client !== undefined;
  const columns = [COLUMNS[0], ...(withClients ? [{ title: "client" }] : []), ...COLUMNS.slice(1, -1), ...(unit.isSum ? [{ title: unit.name, numeric: true }] : []), ...COLUMNS.slice(-1)];
  const newest = [...receipts].reverse();
  const pages = Math.ceil(newest.length / PAGE);
  const host = el("div", {});
  const place = el("span", { class: "note", id: "receipts-page" });
  let page = 0;
  const turn = (by) => {
    page = Math.min(Math.max(page + by, 0), pages - 1);
    const start = page * PAGE;
    const shown = newest.slice(start, start + PAGE);
    host.replaceChildren(table("Receipts, newest first", columns, shown.map((each) => row(each, unit)), { stacks: true }));
    place.textContent = `${whole(start + 1)} to ${whole(start + shown.length)} of ${whole(newest.length)}`;
    newer.disabled = page === 0;
    older.disabled = page === pages - 1;
    if (by) announce(`Receipts ${place.textContent}`);
  };
  const newer = button("Newer", () => turn(-1));
  const older = button("Older", () => turn(1));
  turn(0);
  body.replaceChildren(
    complete ? "" : el("p", { class: "notice" }, `The oldest ${counted(newest.length, "receipt")}; the rest are left out here.`),
    host,
    pages > 1 ? el("div", { class: "buttons" }, newer, older, place) : "",
  );
}

function row(receipt, unit) {
  return [
    whole(receipt.id),
    ...(receipt.client === undefined ? [] : [receipt.client || "the owner"]),
    moment(receipt.time),
    receipt.model ?? el("span", { class: "hash", title: receipt.model_id }, `${receipt.model_id.slice(0, 8)}…`),
    receipt.mechanism,
    whole(receipt.charged_rows),
    ...(unit.isSum ? [figure(receipt.charged)] : []),
    el("span", { class: "hash", title: receipt.hash }, `${receipt.hash.slice(0, 12)}…`),
  ];
}
