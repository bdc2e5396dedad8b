// Drawings. Each has a text that says the same, for who cannot see it.

import { svg } from "./dom.js";
import { figure } from "./format.js";

/** Draw into `host` at its own width, and again whenever that changes, so that text keeps its size. */
export function responsive(host, draw) {
  let drawn = 0;
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.max(240, Math.round(entry.contentRect.width));
    if (width === drawn) return;
    drawn = width;
    host.replaceChildren(draw(width));
  });
  observer.observe(host);
  return host;
}

/** A half circle: what is left of the whole, from the left. share: from 0 to 1. */
export function halfCircle(share) {
  const radius = 88;
  const arc = (from, to) => {
    const point = (part) => {
      const angle = Math.PI * (1 - part);
      return `${(100 + radius * Math.cos(angle)).toFixed(3)} ${(100 - radius * Math.sin(angle)).toFixed(3)}`;
    };
    return `M ${point(from)} A ${radius} ${radius} 0 0 1 ${point(to)}`;
  };
  return svg(
    "svg",
    { viewBox: "0 0 200 108", "aria-hidden": "true", focusable: "false" },
    share < 1 && svg("path", { d: arc(Math.max(0, share), 1), class: "used", "stroke-width": 4 }),
    share > 0 && svg("path", { d: arc(0, Math.min(1, share)), class: "left", "stroke-width": 15 }),
  );
}

/** Round ticks from 0 to at least `top`. */
function ticksTo(top, about = 4) {
  if (!(top > 0)) return [0, 1];
  const rough = top / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, place) => place * step);
}

const PAD = { left: 58, right: 14, top: 22, bottom: 42 };

function frame(width, height, xTicks, yTicks, xAt, yAt, label) {
  return [
    yTicks.map(({ value, text }) => [
      svg("line", { x1: PAD.left, x2: width - PAD.right, y1: yAt(value), y2: yAt(value), class: "grid" }),
      svg("text", { x: PAD.left - 9, y: yAt(value) + 4, "text-anchor": "end" }, text),
    ]),
    xTicks.map(({ value, text, anchor }) =>
      svg("text", { x: xAt(value), y: height - PAD.bottom + 19, "text-anchor": anchor ?? "middle" }, text),
    ),
    svg("line", { x1: PAD.left, x2: width - PAD.right, y1: height - PAD.bottom, y2: height - PAD.bottom, class: "axis" }),
    svg("text", { x: PAD.left, y: 11, class: "strong" }, label),
  ];
}

/** What was spent, step by step. points: [{time, total}], oldest first; limit: of the account; title: of what is counted. */
export function spendChart(points, limit, summary, title) {
  return (width) => {
    const height = 240;
    const start = points[0].time;
    const now = Math.max(points.at(-1).time, Date.now() / 1000);
    const span = Math.max(now - start, 0.001);
    const most = points.at(-1).total;
    // An account that has hardly been used is shown at its own scale, and the limit is said in words.
    const shown = most > limit / 50 ? Math.max(limit, most) : most;
    const yTicks = ticksTo(shown);
    const xAt = (time) => PAD.left + ((time - start) / span) * (width - PAD.left - PAD.right);
    const yAt = (amount) => height - PAD.bottom - (amount / yTicks.at(-1)) * (height - PAD.top - PAD.bottom);
    const steps = [`M ${xAt(start)} ${yAt(0)}`];
    for (const { time, total } of thinned(points, 800)) steps.push(`H ${xAt(time).toFixed(2)} V ${yAt(total).toFixed(2)}`);
    const line = [...steps, `H ${xAt(now).toFixed(2)}`].join(" ");
    return svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary },
      frame(
        width,
        height,
        timeTicks(start, span, width),
        yTicks.map((value) => ({ value, text: figure(value) })),
        xAt,
        yAt,
        title,
      ),
      svg("path", { d: `${line} V ${yAt(0)} Z`, class: "area" }),
      svg("path", { d: line, class: "line" }),
      shown >= limit && [
        svg("line", { x1: PAD.left, x2: width - PAD.right, y1: yAt(limit), y2: yAt(limit), class: "limit" }),
        svg("text", { x: width - PAD.right, y: yAt(limit) - 6, "text-anchor": "end", class: "strong" }, "the budget"),
      ],
      points.length <= 60 && points.map(({ time, total }) => svg("circle", { cx: xAt(time), cy: yAt(total), r: 3, class: "dot" })),
    );
  };
}

function thinned(points, most) {
  const every = Math.ceil(points.length / most);
  return points.filter((_, place) => place % every === 0 || place === points.length - 1);
}

function timeTicks(start, span, width) {
  const days = span > 2 * 86400;
  const style = days ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
  if (!days && span < 600) style.second = "2-digit";
  const format = new Intl.DateTimeFormat("en-GB", style);
  const parts = span <= 1 ? 0 : width > 560 ? 4 : 2;
  const texts = new Set();
  return Array.from({ length: parts + 1 }, (_, place) => {
    const value = start + (parts ? (place / parts) * span : 0);
    const anchor = place === 0 ? "start" : place === parts ? "end" : "middle";
    return { value, text: format.format(new Date(value * 1000)), anchor };
  }).filter(({ text }) => !texts.has(text) && texts.add(text));
}
