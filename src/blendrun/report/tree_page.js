"use strict";
// Draws the tree in #tree-data from one node down, the focus, which clicks and keys change.
// Nodes come by column, parents first; one with number -1 stands for several subtrees.
const data = JSON.parse(document.getElementById("tree-data").textContent);
const [picture, facts, trail] = ["picture", "facts", "trail"].map((id) => document.getElementById(id));
const ROW_PX = 38, ROWS = 14, NARROW_PX = 5, LABEL_PX = 40, POOL_PX = 60;
const SUMS = ["subtrees", "requests", "prompt_tokens", "unique_tokens", "output_tokens", "compute_s", "memory_s"];
const fields = (i) => Object.entries(data.columns).map(([key, values]) => [key, values[i]]);
const nodes = data.columns.up.map((_, i) => ({ ...Object.fromEntries(fields(i)), kids: [] }));
for (const node of nodes) {
  node.parent = nodes[node.up];
  node.parent?.kids.push(node);
}
let focus = nodes[0], drawnPx = 0;
const seconds = (node) => node.compute_s + node.memory_s;
const total = (kids, of) => kids.reduce((sum, kid) => sum + of(kid), 0);
const isLost = (node) => node.node < 0 && !node.kids.length; // in the plan, not in this page
const density = (node) => node.compute_s / node.memory_s; // infinite without KV reads
const count = (n) => n.toLocaleString("en", { maximumFractionDigits: 0 });
const figure = (x) => (Number.isFinite(x) ? x.toLocaleString("en", { maximumSignificantDigits: 3 }) : "no KV");
const time = (s) => (s < 60 ? `${figure(s)} s` : s < 3600 ? `${figure(s / 60)} min` : `${figure(s / 3600)} h`);
const percent = (frac) => `${(100 * frac).toFixed(frac < 0.00995 ? 2 : 1)} %`;
const share = (node) => percent(seconds(node) / (data.job_seconds || 1));
const many = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
function step(node) {
  const ratio = data.job_density === null ? 1 : density(node) / data.job_density;
  return data.steps.filter((least) => Math.max(ratio, 1 / ratio) >= least).length * (ratio < 1 ? -1 : 1) || 0;
}
function title(node) {
  if (node.node < 0) return many(node.subtrees, "smaller subtree");
  return node.text || (node.node === 0 ? "whole job" : node.row < 0 ? "(no tokens of its own)" : "(ends here)");
}
// What to draw below a node: its children, the narrow ones together in a few boxes.
function parts(node, scale) {
  const narrow = node.kids.filter((kid) => seconds(kid) * scale < NARROW_PX);
  if (narrow.length < 2) return node.kids;
  const room = Math.floor((total(narrow, seconds) * scale) / POOL_PX);
  const size = Math.ceil(narrow.length / Math.max(node === focus ? 2 : 1, Math.min(20, room)));
  const made = node.kids.filter((kid) => seconds(kid) * scale >= NARROW_PX);
  for (let i = 0; i < narrow.length; i += size) {
    const kids = narrow.slice(i, i + size);
    const sums = Object.fromEntries(SUMS.map((key) => [key, total(kids, (kid) => kid[key])]));
    made.push(size === 1 ? kids[0] : { node: -1, row: -1, isDrawn: true, parent: node, kids, ...sums });
  }
  return made.sort((a, b) => isLost(a) - isLost(b));
}
// Boxes of a node and of what is below it; says how many rows they take.
function place(node, left, width, level) {
  const lines = [title(node), `${many(node.requests, "request")}, ${share(node)}`];
  const isLast = level === ROWS - 1, ends = isLast || (node.isDrawn && node !== focus);
  const classes = [`s${step(node)}`, node.node < 0 && "pool", !node.kids.length && "end",
    node === focus && "top", isLast && node.kids.length && "deep"];
  const box = make("button", { shown: node, level, middle: left + width / 2, tabIndex: level ? -1 : 0 });
  box.className = classes.filter(Boolean).join(" ");
  const [start, size] = [left, width].map((px) => `${(100 * px) / drawnPx}%`);
  box.style.cssText = `left:${start};width:${size};top:${level * ROW_PX}px`;
  box.setAttribute("aria-label", `${lines.join(", ")} of the job, density ${figure(density(node))}`);
  if (width > LABEL_PX) box.append(...lines.map((textContent) => make("span", { textContent })));
  picture.append(box);
  let rows = level + 1, x = left;
  const scale = width / (seconds(node) || 1);
  for (const kid of ends ? [] : parts(node, scale)) {
    const kidWidth = seconds(kid) * scale;
    if (kidWidth >= 1) rows = Math.max(rows, place(kid, x, kidWidth, level + 1));
    x += kidWidth;
  }
  return rows;
}
function draw() {
  const hadKeys = document.activeElement.closest("#picture, #trail");
  picture.replaceChildren();
  drawnPx = picture.clientWidth;
  picture.style.height = `${ROW_PX * place(focus, 0, drawnPx, 0)}px`;
  trail.replaceChildren();
  for (let node = focus; node; node = node.parent) {
    const button = { textContent: title(node), onclick: () => zoom(node), disabled: node === focus };
    trail.prepend(make("li", {}));
    trail.firstChild.append(make("button", button));
  }
  if (hadKeys) picture.firstChild.focus({ preventScroll: true });
  show(focus);
}
function show(node) {
  const hint = node.parent === nodes[0] ? "" : `; a page of node ${node.parent?.node} has more of them`;
  const said = {
    "text": title(node) + (isLost(node) ? `: too small for this page${hint}` : ""),
    "node": node.node < 0 ? "–" : node.node, "requests": count(node.requests),
    "input row": node.row < 0 ? "–" : count(node.row), "share of the job": share(node),
    "compute": time(node.compute_s), "KV reads": time(node.memory_s), "density": figure(density(node)),
    "prompt tokens": count(node.prompt_tokens), "unique tokens": count(node.unique_tokens),
    "shared": percent(node.prompt_tokens ? 1 - node.unique_tokens / node.prompt_tokens : 0),
    "own tokens": node.node > 0 ? `${count(node.edge)} from ${count(node.depth - node.edge)}` : "–",
    "expected output": count(node.output_tokens / (node.requests || 1)) + (node.requests > 1 ? " a request" : ""),
    "lengths from": node.origin || "–",
  };
  for (const place of facts.querySelectorAll("[data-fact]")) place.textContent = said[place.dataset.fact];
}
function zoom(node) {
  if (!node?.kids.length) return;
  focus = node;
  draw();
}
function move(from, [down, along]) {
  const row = [...picture.children].filter((box) => box.level === from.level + down);
  const far = (box) => Math.abs(box.middle - from.middle);
  (along ? row[row.indexOf(from) + along] : row.sort((a, b) => far(a) - far(b))[0])?.focus();
}
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const shownAt = (event) => event.target.closest("#picture button")?.shown;
picture.addEventListener("focusin", (event) => show(shownAt(event)));
document.onpointerover = (event) => show(shownAt(event) ?? document.activeElement.shown ?? focus);
picture.onclick = (event) => zoom(shownAt(event) === focus ? focus.parent : shownAt(event));
document.onkeydown = (event) => {
  if (event.key === "Escape") zoom(focus.parent);
  if (!ARROWS[event.key] || !document.activeElement.shown) return;
  event.preventDefault();
  move(document.activeElement, ARROWS[event.key]);
};
new ResizeObserver(() => drawnPx === picture.clientWidth || draw()).observe(picture);
