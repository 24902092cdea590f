// The tree theatre: the draft trees of one round side by side, with the target's answer to them.
//
// It draws a trace (format "dominotree-trace", version 1) that Python has checked, and computes nothing of a model.
// One model of state, given by the notebook or by `staticModel`, holds what is shown; every change of it redraws.
// Text from outside is only ever set as text, never read as markup. No other file and no network is used.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 22, GAP = 18, PAD = 6, EDGE = 8, BOX = 18; // CSS pixels: between rows and columns, in and around boxes
const FONT = '12px "DejaVu Sans", system-ui, sans-serif';
const HEAP_SHOWN = 5, CHOICES = 6, UPDATES = 101;
const PLAY_MS = 350, CALM_MS = 1000; // a step of play, and where the reader asks for less motion
const SHOWN = ["trace", "prompt", "round", "budget", "candidates", "temperature", "step", "predict"];

// --- Numbers and words -----------------------------------------------------------------------------------------

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const nearest = (values, wanted) => values.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

function percent(logProb) {
  const p = Math.exp(logProb);
  if (p === 0) return "0 %";
  return p >= 0.1 ? `${(100 * p).toFixed(0)} %` : p >= 0.0001 ? `${(100 * p).toPrecision(2)} %` : p.toExponential(1);
}

const VISIBLE = { " ": "␣", "\n": "↵", "\t": "⇥" };
const UNSEEN = /[\p{C}\p{Z}]/u, MARK = /^\p{M}/u;

/** A token's text as a label: nothing in it is invisible, and a mark has something to stand on. */
export function literal(text, limit = 12) {
  const shown = [...text].slice(0, limit + 1).map((c) => {
    if (c in VISIBLE) return VISIBLE[c];
    return UNSEEN.test(c) ? `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>` : c;
  });
  if (MARK.test(text)) shown.unshift("◌");
  const drawn = shown.join("");
  const fits = [...text].length <= limit && drawn.length <= 2 * limit;
  return fits ? drawn : [...drawn].slice(0, limit - 1).join("") + "…";
}

/** A number in [0, 1) that is the same for the same four whole numbers. */
function draw01(...numbers) {
  let h = 0x9e3779b9;
  for (const n of numbers) {
    h = Math.imul(h ^ (n + 0x7f4a7c15), 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    h ^= h >>> 16;
  }
  return (h >>> 0) / 2 ** 32;
}

// --- Elements --------------------------------------------------------------------------------------------------

const OWN_KEYS = "data-lm-suppress-shortcuts"; // JupyterLab takes no key from an element that has this attribute
const TAKE_KEYS = ["button", "input", "select", "summary", "textarea"];

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  if (TAKE_KEYS.includes(tag)) node.setAttribute(OWN_KEYS, "true");
  for (const [name, value] of Object.entries(properties)) {
    if (name in node && !name.startsWith("aria")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children); // strings become text nodes
  return node;
}

function draw(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Set an attribute only where it differs: most updates leave most of the picture as it is. */
function put(node, name, value) {
  const text = String(value);
  node.seen ??= {};
  if (node.seen[name] === text) return;
  node.seen[name] = text;
  if (name === "text") node.textContent = text;
  else node.setAttribute(name, text);
}

const widths = new Map();
let pen = null;
function textWidth(text) {
  let width = widths.get(text);
  if (width === undefined) {
    if (!pen) {
      pen = document.createElement("canvas").getContext("2d");
      pen.font = FONT;
    }
    width = Math.ceil(pen.measureText(text).width) + 1;
    widths.set(text, width);
  }
  return width;
}

let uniques = 0;
function slider(name, unit, change) {
  const id = `dt-slider-${++uniques}`;
  const input = make("input", { type: "range", id, min: 0, step: 1 });
  const output = make("output", { htmlFor: id });
  input.addEventListener("input", () => change(Number(input.value)));
  const node = make("div", { className: "dt-control" }, make("label", { htmlFor: id }, name), input, output);
  const set = (value, most, text) => {
    put(input, "max", most);
    input.value = value;
    input.disabled = most === 0;
    input.setAttribute("aria-valuetext", `${text}${unit}`);
    output.textContent = `${text}${unit}`;
  };
  return { node, input, set };
}

// --- What a round says -----------------------------------------------------------------------------------------

/** One round of a trace with the questions that the pictures ask of it. Nodes are indices into the round's union. */
class Scene {
  constructor(trace, prompt, round, temperature, seed) {
    Object.assign(this, { trace, record: prompt.rounds[round], temperature, seed });
    this.place = [trace.prompts.indexOf(prompt), round];
    const { tokens, parents } = this.record.nodes;
    this.below = tokens.map(() => []);
    parents.forEach((parent, node) => parent >= 0 && this.below[parent].push(node));
    const asRecorded = temperature > 0 && temperature === trace.settings.temperature && seed === 0;
    this.drawn = asRecorded ? this.recorded() : new Map();
  }
  /** The tokens that the target drew when the trace was recorded, by the node before them. */
  recorded() {
    const drawn = new Map(), { accepted, bonus } = this.record;
    for (const [method, row] of Object.entries(accepted)) {
      for (const [count, nodes] of Object.entries(row)) {
        const after = [...nodes.map((node) => this.token(node)), bonus[method][count]];
        [0, ...nodes].forEach((node, i) => drawn.set(node, after[i]));
      }
    }
    return drawn;
  }
  token(node) { return this.record.nodes.tokens[node]; }
  parent(node) { return this.record.nodes.parents[node]; }
  depth(node) { return this.record.nodes.depths[node]; }
  word(token) { return this.trace.vocabulary[token] ?? `#${token}`; }
  text(node) { return this.word(this.token(node)); }
  label(node) { return literal(this.text(node)) || `#${this.token(node)}`; }
  quoted(token) { return token === null ? "a token of no tree" : `«${literal(this.word(token)) || `#${token}`}»`; }
  path(node) {
    const nodes = [];
    for (; node > 0; node = this.parent(node)) nodes.unshift(node);
    return nodes;
  }
  /** Natural log of the target's probability of a node's token after its path, at the temperature shown. */
  target(node) {
    if (node === 0) return 0;
    const { choice, target, logits, log_normalisers } = this.record, above = this.parent(node), t = this.temperature;
    if (t === 0) return choice[above] === this.token(node) ? 0 : -Infinity;
    if (t === 1) return target[node];
    return logits[node] / t - log_normalisers[above][this.trace.temperatures.indexOf(t)];
  }
  /** The token that the target takes after a node: {token, node}. Above T = 0 a draw, the same for every tree. */
  next(node) {
    if (this.temperature === 0 || this.drawn.has(node)) {
      const token = this.temperature === 0 ? this.record.choice[node] : this.drawn.get(node);
      return { token, node: this.below[node].find((child) => this.token(child) === token) };
    }
    let left = draw01(...this.place, node, this.seed);
    for (const child of this.below[node]) {
      left -= Math.exp(this.target(child));
      if (left < 0) return { token: this.token(child), node: child };
    }
    return { token: null, node: undefined }; // one that stands in none of the trees
  }
  walk(has) {
    const nodes = [];
    let step = this.next(0);
    while (step.node !== undefined && has(step.node)) {
      nodes.push(step.node);
      step = this.next(step.node);
    }
    return { nodes, bonus: step.token };
  }
}

/** A tree of a scene cut to a budget and laid out: leaves one row apart, a parent level with its best child.
 *
 * The target's own token is laid out behind the accepted path as one node more, the bonus.
 */
class Staged {
  constructor(scene, method, candidates, budget) {
    this.scene = scene;
    this.full = scene.record.trees[method][candidates];
    this.order = this.full.nodes.slice(0, budget + 1);
    this.row = new Map(this.order.map((node, row) => [node, row]));
    this.children = this.order.map(() => []);
    this.order.forEach((node, row) => row && this.children[this.row.get(scene.parent(node))].push(row));
    this.walk = scene.walk((node) => this.row.has(node));
    this.lay();
  }
  /** The row of the node above the bonus. */
  get last() { return this.row.get(this.walk.nodes[this.walk.nodes.length - 1] ?? 0); }
  get size() { return this.order.length - 1; }
  has(node) { return this.row.has(node); }
  score(node) { return this.full.scores[this.row.get(node)]; }
  lay() {
    const { scene, order, walk } = this, bonus = order.length, wide = [];
    const depths = order.map((node) => scene.depth(node));
    this.labels = order.map((node) => scene.label(node));
    if (walk.bonus !== null) {
      this.labels.push(literal(scene.word(walk.bonus)) || `#${walk.bonus}`);
      depths.push(depths[this.last] + 1);
    }
    this.widths = this.labels.map((label) => textWidth(label) + 2 * PAD);
    depths.forEach((depth, row) => { wide[depth] = Math.max(wide[depth] ?? 0, this.widths[row]); });
    const columns = [EDGE];
    wide.forEach((width, depth) => columns.push(columns[depth] + width + GAP));
    this.x = depths.map((depth) => columns[depth]);
    this.y = [];
    this.preorder = [];
    const stack = [0];
    for (let y = EDGE + BOX / 2; stack.length;) {
      const row = stack.pop(), below = row === bonus ? [] : [...this.children[row]];
      if (row === this.last && walk.bonus !== null) below.push(bonus);
      if (row !== bonus) this.preorder.push(row);
      this.y[row] = y;
      if (!below.length) y += ROW;
      stack.push(...below.reverse());
      this.height = y + EDGE;
    }
    this.width = columns[columns.length - 1];
  }
  /** What the heap holds once `step` nodes below the root are taken, best first: [parent row, token, score]. */
  waiting(step) {
    const taken = new Set();
    this.order.slice(1, step + 1).forEach((node) => {
      taken.add(`${this.row.get(this.scene.parent(node))} ${this.scene.token(node)}`);
    });
    const pushed = this.full.pushed.slice(0, step + 1).flat();
    return pushed.filter(([parent, token]) => !taken.has(`${parent} ${token}`)).sort((a, b) => b[2] - a[2]);
  }
  /** Expected accepted length: by the drafter's scores, and by the target's own probabilities. */
  expected() {
    let drafter = 0, target = 0;
    const reach = [0];
    for (let row = 1; row < this.order.length; row++) {
      const node = this.order[row];
      reach[row] = reach[this.row.get(this.scene.parent(node))] + this.scene.target(node);
      drafter += Math.exp(this.full.scores[row]);
      target += Math.exp(reach[row]);
    }
    return { drafter, target };
  }
}

// --- One tree --------------------------------------------------------------------------------------------------

class Panel {
  constructor(theatre, method, title) {
    Object.assign(this, { theatre, method, title, slots: new Map(), current: 0 });
    const id = `dt-panel-${++uniques}`;
    this.summary = make("p", { className: "dt-summary" });
    this.svg = draw("svg", { role: "tree", "aria-labelledby": id });
    this.edges = draw("g", { "aria-hidden": "true" });
    this.extra = draw("g", { "aria-hidden": "true", class: "dt-node dt-bonus" });
    this.extraBox = draw("rect", { height: BOX, y: -BOX / 2 });
    this.extraText = draw("text", { x: PAD, y: 4 });
    this.extraEdge = draw("path", { class: "dt-edge dt-bonus" });
    this.extra.append(this.extraBox, this.extraText);
    this.edges.append(this.extraEdge);
    this.svg.append(this.edges, this.extra);
    this.heapTitle = make("p", { className: "dt-heap-title" });
    this.heap = make("ol", { className: "dt-heap" });
    this.node = make("section", { className: "dt-panel", "aria-labelledby": id },
      make("h2", { id }, title), this.summary, make("div", { className: "dt-scroll" }, this.svg),
      this.heapTitle, this.heap);
    this.node.dataset.method = method;
    this.listen();
  }
  listen() {
    const of = (event) => event.target.closest?.("[role=treeitem]");
    this.svg.addEventListener("pointerover", (event) => of(event) && this.theatre.hover(this, of(event).union));
    this.svg.addEventListener("pointerleave", () => this.theatre.leave());
    this.svg.addEventListener("click", (event) => of(event) && this.theatre.select(this, of(event).union));
    this.svg.addEventListener("focusin", (event) => of(event) && this.theatre.focused(this, of(event).union));
    this.svg.addEventListener("focusout", () => this.theatre.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { staged } = this, row = staged.row.get(this.current), near = staged.preorder.indexOf(row);
    const go = {
      ArrowDown: () => staged.preorder.slice(near + 1).find((other) => other <= this.step),
      ArrowUp: () => staged.preorder.slice(0, near).reverse().find((other) => other <= this.step),
      ArrowRight: () => staged.children[row].find((other) => other <= this.step),
      ArrowLeft: () => (row ? staged.row.get(staged.scene.parent(this.current)) : undefined),
      Home: () => 0,
      End: () => [...staged.preorder].reverse().find((other) => other <= this.step),
    }[event.key];
    if (go) {
      const to = go();
      if (to !== undefined) this.slotOf.get(staged.order[to]).group.focus();
    } else if (event.key === "Enter" || event.key === " ") this.theatre.select(this, this.current);
    else return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has keys of its own
  }
  /** The elements of a node. A node keeps its own, so that an update touches only what has changed. */
  slot(node) {
    if (!this.slots.has(node)) {
      const group = draw("g", { role: "treeitem", [OWN_KEYS]: "true" });
      const box = draw("rect", { class: "dt-box", height: BOX, y: -BOX / 2 });
      const bar = draw("rect", { class: "dt-bar", height: 3, x: 1.5, y: BOX / 2 - 4 });
      const text = draw("text", { x: PAD, y: 3 });
      const edge = draw("path");
      group.append(box, bar, text);
      this.svg.append(group);
      this.edges.append(edge);
      group.union = node;
      this.slots.set(node, { group, box, bar, text, edge });
    }
    return this.slots.get(node);
  }
  draw(staged, step, known, revealed) {
    const held = this.svg.contains(this.svg.getRootNode().activeElement);
    this.staged = staged;
    this.step = Math.min(step, staged.size);
    this.slotOf = new Map();
    const accepted = new Set(known ? staged.walk.nodes : revealed);
    if (!(staged.row.get(this.current) <= this.step)) this.current = 0;
    staged.order.slice(0, this.step + 1).forEach((node, row) => this.drawNode(this.slot(node), node, row, accepted));
    for (const [node, slot] of this.slots) if (!this.slotOf.has(node)) this.hide(slot);
    this.drawBonus(known);
    put(this.svg, "width", staged.width);
    put(this.svg, "height", staged.height);
    this.drawWords(known);
    if (held) this.theatre.quietly(() => this.slotOf.get(this.current).group.focus({ preventScroll: true }));
  }
  hide(slot) {
    put(slot.group, "display", "none");
    put(slot.edge, "display", "none");
  }
  drawNode(slot, node, row, accepted) {
    const { staged } = this, { scene } = staged, { group } = slot;
    const kind = row === 0 ? "dt-anchor" : accepted.has(node) ? "dt-accepted" : "dt-rejected";
    this.slotOf.set(node, slot);
    slot.kind = kind;
    put(group, "display", "inline");
    put(group, "data-node", node);
    put(group, "data-row", row);
    put(group, "tabindex", node === this.current ? 0 : -1);
    put(group, "aria-level", scene.depth(node) + 1);
    put(group, "aria-label", this.name(node, kind));
    put(group, "transform", `translate(${staged.x[row]},${staged.y[row]})`);
    put(slot.box, "width", staged.widths[row]);
    put(slot.box, "rx", row === 0 ? 0 : 6);
    put(slot.bar, "width", Math.max((staged.widths[row] - 3) * Math.exp(staged.full.scores[row]), 0).toFixed(1));
    put(slot.text, "text", staged.labels[row]);
    put(slot.edge, "display", row ? "inline" : "none");
    if (row) put(slot.edge, "d", this.curve(staged.row.get(scene.parent(node)), staged.x[row], staged.y[row]));
  }
  /** Level out of the parent's column, bent within the gap behind it. */
  curve(parent, x, y) {
    const { staged } = this, from = staged.x[parent] + staged.widths[parent], bend = x - GAP, half = x - GAP / 2;
    return `M${from} ${staged.y[parent]}H${bend}C${half} ${staged.y[parent]} ${half} ${y} ${x} ${y}`;
  }
  name(node, kind) {
    const { scene } = this.staged, what = { "dt-anchor": "anchor", "dt-accepted": "accepted" }[kind] ?? "draft";
    return `${this.staged.labels[this.staged.row.get(node)]}, ${what}, depth ${scene.depth(node)}, score ` +
      `${percent(this.staged.score(node))}`;
  }
  /** The bonus, where the tree is complete and nothing is to be guessed. */
  drawBonus(known) {
    const { staged } = this, at = staged.order.length;
    const shown = known && staged.walk.bonus !== null && this.step === staged.size;
    put(this.extra, "display", shown ? "inline" : "none");
    put(this.extraEdge, "display", shown ? "inline" : "none");
    if (!shown) return;
    put(this.extra, "transform", `translate(${staged.x[at]},${staged.y[at]})`);
    put(this.extraBox, "width", staged.widths[at]);
    put(this.extraText, "text", staged.labels[at]);
    put(this.extraEdge, "d", this.curve(staged.last, staged.x[at], staged.y[at]));
  }
  drawWords(known) {
    const { staged, step } = this, { scene, walk } = staged, { drafter, target } = staged.expected();
    const t = scene.temperature, own = scene.quoted(walk.bonus);
    const found = `accepts ${walk.nodes.length}, then ${own}` + (t ? `; expects ${target.toFixed(2)} at T = ${t}` : "");
    this.summary.textContent = `${staged.size} nodes. Drafter expects ${drafter.toFixed(2)} accepted; target ` +
      (known ? found : "hidden until you have guessed") + ".";
    const waiting = staged.waiting(step);
    this.heapTitle.textContent = `Heap: ${step} of ${staged.size} taken, ${waiting.length} waiting. Best first:`;
    const lines = waiting.slice(0, HEAP_SHOWN).map(([parent, token, score]) =>
      `${literal(scene.word(token))} after ${staged.labels[parent]}: ${percent(score)}`);
    while (this.heap.children.length < HEAP_SHOWN) this.heap.append(make("li"));
    [...this.heap.children].forEach((item, i) => {
      put(item, "text", lines[i] ?? "");
      item.hidden = i >= lines.length;
    });
  }
  /** Light up a node, the way to it, and what is selected. */
  mark(hot, selected) {
    const way = new Set(hot === null ? [] : [0, ...this.staged.scene.path(hot)]);
    for (const [node, slot] of this.slotOf) {
      const lit = node === hot ? " dt-hot" : way.has(node) ? " dt-way" : "";
      const on = lit + (node === selected ? " dt-selected" : "");
      put(slot.group, "class", `dt-node ${slot.kind}${on}`);
      put(slot.group, "aria-selected", node === selected);
      put(slot.edge, "class", `dt-edge ${slot.kind}${on}`);
    }
  }
  /** Scroll this tree, and nothing else, until the node is in view. */
  reveal(node) {
    const row = this.staged.row.get(node), box = this.svg.parentElement;
    if (row === undefined || row > this.step) return;
    const into = (at, length, from, room) => {
      if (at < from) return at - EDGE;
      return at + length > from + room ? at + length + EDGE - room : from;
    };
    const left = into(this.staged.x[row], this.staged.widths[row], box.scrollLeft, box.clientWidth);
    const top = into(this.staged.y[row] - BOX / 2, BOX, box.scrollTop, box.clientHeight);
    if (left !== box.scrollLeft || top !== box.scrollTop) box.scrollTo(left, top);
  }
  /** Scroll this tree to the end of its accepted path, with what stands above and below it. */
  follow() {
    const { staged } = this, box = this.svg.parentElement, end = staged.x[staged.last] + staged.widths[staged.last];
    box.scrollTo(Math.max(end + 80 - box.clientWidth, 0), staged.y[staged.last] - box.clientHeight / 2);
  }
  rove(node) {
    for (const one of [this.current, node]) {
      const slot = this.slotOf.get(one);
      if (slot) put(slot.group, "tabindex", one === node ? 0 : -1);
    }
    this.current = node;
  }
}

// --- One node --------------------------------------------------------------------------------------------------

/** What is known about one node: its path, what each tree and the target think of it, its row of the pass. */
class Detail {
  constructor() {
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.title = make("h2", {}, "Node");
    this.path = make("bdi", { className: "dt-path" });
    this.tokens = make("bdi", { dir: "ltr" });
    this.facts = make("p", { className: "dt-facts" });
    this.rows = make("tbody");
    this.maskTitle = make("h2", {}, "Attention mask");
    this.maskWords = make("p", { className: "dt-facts" });
    this.canvas = make("canvas", { role: "img", className: "dt-mask" });
    this.childrenTitle = make("h2", {}, "Its children, before and after the correction");
    this.childrenNote = make("p", { className: "dt-facts" });
    this.childRows = make("tbody");
    const heads = (...names) => make("thead", {}, make("tr", {}, ...names.map((n) => make("th", { scope: "col" }, n))));
    this.children = make("table", {}, heads("token", "marginal", "corrected"), this.childRows);
    this.node = make("div", { className: "dt-detail" },
      make("section", { className: "dt-card" }, this.title, make("p", {}, this.path),
        make("p", { className: "dt-facts" }, this.tokens), this.facts,
        make("table", {}, heads("tree", "taken as", "score", "position id", "KV slot", "after commit"), this.rows)),
      make("section", { className: "dt-card" }, this.maskTitle, this.maskWords,
        make("div", { className: "dt-mask-box", tabIndex: 0, role: "group", "aria-label": "mask, scrolls",
          [OWN_KEYS]: "true" }, this.canvas)),
      make("section", { className: "dt-card" }, this.childrenTitle, this.childrenNote, this.children));
  }
  draw(scene, panels, panel, node, known) {
    const depth = scene.depth(node), words = scene.path(node).map((n) => scene.text(n)).join("");
    this.path.textContent = scene.text(0) + words;
    const above = scene.path(node).reduce((sum, n) => sum + scene.target(n), 0);
    this.tokens.textContent = [0, ...scene.path(node)].map((n) => scene.label(n)).join(" → ");
    const own = node ? `token ${percent(scene.target(node))}, whole path ${percent(above)}` : "committed already";
    this.facts.textContent = `Token «${scene.label(node)}» (id ${scene.token(node)}), depth ${depth}. ` +
      `Target, at T = ${scene.temperature}: ${known ? own : "hidden until you have guessed"}.`;
    this.rows.replaceChildren(...panels.map((p) => this.treeRow(scene, p, node, known)));
    this.drawMask(scene, panel, node);
    this.drawChildren(scene, node);
  }
  treeRow(scene, panel, node, known) {
    const { staged } = panel, first = scene.record.context_length, name = make("th", { scope: "row" }, panel.method);
    const cells = (...texts) => make("tr", {}, name, ...texts.map((text) => make("td", {}, text)));
    if (!staged.has(node)) return cells("not in this tree", "–", "–", "–", "–");
    const row = staged.row.get(node), kept = node === 0 || staged.walk.nodes.includes(node);
    const slot = first + scene.depth(node);
    return cells(row ? `number ${row}` : "root", percent(staged.score(node)), String(slot), String(first + row),
      !known ? "hidden" : kept ? `moves to ${slot}` : "cut off");
  }
  drawMask(scene, panel, node) {
    const { staged } = panel, row = staged.row.get(node), first = scene.record.context_length;
    const seen = row === undefined ? [] : [0, ...scene.path(node)].map((n) => staged.row.get(n)).sort((a, b) => a - b);
    this.maskTitle.textContent = `Attention mask of ${panel.method}`;
    this.maskWords.textContent = row === undefined ? "This tree has no row for the node." :
      `Row ${row} sees the ${first} committed tokens and columns ${seen.join(", ")}.`;
    this.canvas.setAttribute("aria-label", `mask of ${staged.order.length} rows; ${this.maskWords.textContent}`);
    this.paint(staged, row);
  }
  /** The theme's colours. To ask for them makes the browser work, so it is done once a theme. */
  colours() {
    const theme = `${document.body.dataset.jpThemeLight} ${this.dark.matches}`;
    if (this.theme !== theme && this.node.isConnected) {
      const look = getComputedStyle(this.node);
      this.theme = theme;
      this.inks = Object.fromEntries(["faint", "accent", "ink"].map((n) => [n, look.getPropertyValue(`--dt-${n}`)]));
    }
    return this.inks ?? {};
  }
  /** A square is filled where a row sees a column; the row of the node is framed. */
  paint(staged, lit) {
    const { canvas } = this, count = staged.order.length, cell = clamp(Math.floor(320 / count), 3, 14);
    const look = this.colours(), past = 3 * cell, size = count * cell;
    [canvas.width, canvas.height] = [past + size + 2, size + 2];
    const ink = canvas.getContext("2d");
    ink.fillStyle = look.faint;
    ink.fillRect(1, 1, past - 2, size);
    ink.fillStyle = look.accent;
    const gap = cell > 4 ? 1 : 0;
    for (let row = 0; row < count; row++) {
      const above = (at) => (at ? staged.row.get(staged.scene.parent(staged.order[at])) : undefined);
      for (let at = row; at !== undefined; at = above(at)) {
        ink.fillRect(1 + past + at * cell, 1 + row * cell, cell - gap, cell - gap);
      }
    }
    if (lit === undefined) return;
    ink.strokeStyle = look.ink;
    ink.lineWidth = 2;
    ink.strokeRect(1, lit * cell, past + size, cell + 1);
  }
  drawChildren(scene, node) {
    const record = scene.record.children[node];
    this.children.hidden = !record;
    this.childrenNote.textContent = record ? `After «${scene.label(node)}»: the tokens that the drafter likes best.` :
      "Not recorded for this node.";
    if (!record) return;
    this.childRows.replaceChildren(...record.tokens.map((token, i) => make("tr", {},
      make("th", { scope: "row" }, make("bdi", { dir: "ltr" }, literal(scene.word(token)) || `#${token}`)),
      this.bar(record.marginal[i], "dt-before"), this.bar(record.conditional[i], "dt-after"))));
  }
  bar(logProb, look) {
    const bar = make("span", { className: `dt-length ${look}`, "aria-hidden": "true" });
    bar.style.width = `${(60 * Math.exp(logProb)).toFixed(1)}px`;
    return make("td", {}, bar, percent(logProb));
  }
}

// --- Guessing --------------------------------------------------------------------------------------------------

/** The mode in which the reader says which branch the model takes, one token at a time. */
class Guess {
  constructor(theatre) {
    Object.assign(this, { theatre, right: 0, asked: 0 });
    this.question = make("p");
    this.options = make("div", { className: "dt-options" });
    this.answer = make("p", { role: "status" });
    this.node = make("fieldset", { className: "dt-guess" }, make("legend", {}, "Which branch does the model take?"),
      this.question, this.options, this.answer);
    this.restart("");
  }
  restart(key) {
    Object.assign(this, { key, at: 0, revealed: [], over: false });
    this.answer.textContent = "";
  }
  /** `key` names the round and all that decides what the target takes there: another one begins anew. */
  draw(key, scene, staged) {
    if (key !== this.key) this.restart(key);
    Object.assign(this, { scene, staged });
    this.node.hidden = false;
    const rows = staged.has(this.at) ? staged.children[staged.row.get(this.at)].slice(0, CHOICES) : [];
    if (!this.over && !rows.length) this.finish();
    this.question.textContent = this.over ? "This round is over; go on with another." :
      `After «${scene.label(this.at)}» the model takes`;
    const nodes = this.over ? [] : rows.map((row) => staged.order[row]);
    const named = nodes.map((node) => [scene.label(node), node]).sort((a, b) => (a[0] < b[0] ? -1 : 1));
    if (!this.over) named.push(["none of these", undefined]);
    this.options.replaceChildren(...named.map(([label, node]) => {
      const button = make("button", { type: "button" }, label);
      button.addEventListener("click", () => this.say(node, nodes));
      return button;
    }));
  }
  say(guess, nodes) {
    const step = this.scene.next(this.at), truth = nodes.includes(step.node) ? step.node : undefined;
    const word = this.scene.quoted(step.token);
    this.asked += 1;
    this.right += guess === truth ? 1 : 0;
    this.answer.textContent = `${guess === truth ? "Right" : "No"}: the model takes ${word}. ` +
      `${this.right} of ${this.asked} right.`;
    if (step.node !== undefined && this.staged.has(step.node)) {
      this.revealed.push(step.node);
      this.at = step.node;
    } else this.finish();
    this.theatre.refresh();
    this.options.querySelector("button")?.focus();
  }
  finish() { this.over = true; }
}

// --- A prompt of one's own -------------------------------------------------------------------------------------

/** What needs a kernel: a prompt, a model, run and cancel. Absent where there is none. */
class Kernel {
  constructor(model) {
    this.model = model;
    const id = `dt-kernel-${++uniques}`;
    this.prompt = make("textarea", { id: `${id}-p`, rows: 2, className: "dt-prompt-box" });
    this.choice = make("select", { id: `${id}-m` });
    this.length = make("input", { id: `${id}-n`, type: "number", min: 1, max: 512, value: 48 });
    this.run = make("button", { type: "button" }, "Run");
    this.cancel = make("button", { type: "button" }, "Cancel");
    this.progress = make("progress", { "aria-label": "new tokens" });
    this.state = make("p", { role: "status" });
    this.text = make("bdi", { className: "dt-stream" });
    const field = (name, input) =>
      make("div", { className: "dt-control" }, make("label", { htmlFor: input.id }, name), input);
    this.node = make("fieldset", { className: "dt-kernel" }, make("legend", {}, "A prompt of your own"),
      field("Prompt", this.prompt), field("Model", this.choice), field("New tokens", this.length),
      make("div", { className: "dt-control" }, this.run, this.cancel, this.progress), this.state,
      make("p", {}, this.text));
    this.prompt.addEventListener("keydown", (event) => event.stopPropagation());
    this.run.addEventListener("click", () => model.send({
      do: "run", prompt: this.prompt.value, model: this.choice.value, max_new_tokens: Number(this.length.value),
    }));
    this.cancel.addEventListener("click", () => model.send({ do: "cancel" }));
  }
  draw() {
    const names = this.model.get("models"), status = this.model.get("status");
    this.node.hidden = !names.length;
    if (this.choice.options.length !== names.length) {
      this.choice.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    }
    const running = status.state === "running";
    this.run.disabled = running;
    this.cancel.disabled = !running;
    this.progress.max = status.total || 1;
    this.progress.value = status.done || 0;
    this.state.textContent = status.message || "";
    this.text.textContent = status.text || "";
  }
}

// --- The whole stage -------------------------------------------------------------------------------------------

class Theatre {
  constructor(model, root) {
    Object.assign(this, { model, root, hot: null, seed: 0, times: [], timer: 0, pending: false, silent: false });
    this.calm = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.controls();
    this.text = make("p", { className: "dt-text" });
    this.stage = make("div", { className: "dt-stage" });
    this.detail = new Detail();
    this.guess = new Guess(this);
    this.kernel = new Kernel(model);
    this.live = make("p", { className: "dt-live", role: "status", "aria-live": "polite" });
    this.speed = make("p", { className: "dt-speed" });
    const help = make("details", { className: "dt-help" }, make("summary", {}, "Keys and marks"), make("p", {},
      "In a tree: arrow down and up go through the nodes, right to the first child, left to the parent, Home and End " +
      "to the ends, Enter selects. The same node lights up in every tree that has it. A thick filled box is accepted " +
      "by the target, a thin hollow one is not, a dashed square one is the target's own token; the bar in a box is " +
      "the score, the probability of the whole path by the drafter."));
    root.append(make("div", { className: "dt-theatre", role: "group", "aria-label": "Tree theatre" },
      this.kernel.node, this.head, this.text, this.guess.node, this.stage, this.detail.node, help, this.speed,
      this.live));
    this.changed = () => this.later();
    for (const name of SHOWN) model.on(`change:${name}`, this.changed);
    this.told = () => this.kernel.draw();
    for (const name of ["models", "status"]) model.on(`change:${name}`, this.told);
    this.chosen = () => this.stage.children.length && this.mark();
    model.on("change:selected", this.chosen);
    this.kernel.draw();
    this.refresh();
  }
  controls() {
    const set = (name) => (value) => this.set({ [name]: value });
    this.which = make("select", { id: `dt-which-${++uniques}` });
    this.which.addEventListener("change", () => this.set({ prompt: this.which.selectedIndex, round: 0, step: -1 }));
    this.whichRow = make("div", { className: "dt-control dt-wide" },
      make("label", { htmlFor: this.which.id }, "Recorded prompt"), this.which);
    this.round = slider("Round", "", (value) => this.set({ round: value, step: -1 }));
    this.budget = slider("Budget", " nodes", (value) => this.set({ budget: value, step: -1 }));
    this.candidates = slider("Candidates M", "", (i) => this.set({ candidates: this.trace.candidates[i], step: -1 }));
    this.temperature = slider("Temperature", "", (i) => this.set({ temperature: this.temperatures[i] }));
    this.step = slider("Builder's step", "", set("step"));
    const button = (name, act) => {
      const node = make("button", { type: "button" }, name);
      node.addEventListener("click", act);
      return node;
    };
    this.playButton = button("Play", () => this.play());
    this.predict = make("input", { type: "checkbox", id: `dt-predict-${++uniques}` });
    this.predict.addEventListener("change", () => this.set({ predict: this.predict.checked }));
    this.again = button("Draw again", () => { this.seed += 1; this.refresh(); });
    const buttons = make("div", { className: "dt-control" }, button("Step back", () => this.move(-1)), this.playButton,
      button("Step", () => this.move(1)), this.again,
      make("span", {}, this.predict, make("label", { htmlFor: this.predict.id }, " Predict the branch")));
    const sliders = [this.round, this.budget, this.candidates, this.temperature, this.step].map((s) => s.node);
    this.head = make("div", { className: "dt-controls", role: "group", "aria-label": "What is shown" },
      this.whichRow, ...sliders, buttons);
  }
  set(values) {
    this.stop();
    for (const [name, value] of Object.entries(values)) this.model.set(name, value);
    this.model.save_changes();
  }
  get(name) { return this.model.get(name); }
  later() {
    if (this.pending) return;
    this.pending = true;
    queueMicrotask(() => { this.pending = false; this.refresh(); });
  }

  // --- play and step ---

  now() {
    const step = this.get("step"), most = this.most;
    return step < 0 ? most : Math.min(step, most);
  }
  move(by) { this.set({ step: clamp(this.now() + by, 0, this.most) }); }
  play() {
    if (this.timer) return this.stop();
    if (this.now() >= this.most) this.model.set("step", 0);
    this.playButton.textContent = "Pause";
    this.timer = window.setInterval(() => {
      const step = Math.min(this.now() + 1, this.most);
      this.model.set("step", step);
      if (step >= this.most) { this.stop(); this.model.save_changes(); }
    }, this.calm.matches ? CALM_MS : PLAY_MS);
  }
  stop() {
    window.clearInterval(this.timer);
    this.timer = 0;
    this.playButton.textContent = "Play";
  }

  // --- drawing ---

  /** Draw everything, and note how long script, style and layout took. */
  refresh() {
    const began = performance.now();
    const shown = this.drawAll();
    this.root.getBoundingClientRect(); // style and layout are part of an update
    if (shown) this.note(performance.now() - began);
  }
  note(milliseconds) {
    const nodes = `${Math.max(...this.panels.map((p) => p.staged.size))} nodes a tree`;
    if (this.first === null) {
      this.first = milliseconds;
      this.speed.textContent = `Drawn at first in ${milliseconds.toFixed(1)} ms, ${nodes}; no update yet.`;
      return;
    }
    this.times.push(milliseconds);
    if (this.times.length > UPDATES) this.times.shift();
    this.speed.dataset.median = median(this.times).toFixed(2);
    this.speed.textContent = `Median update ${median(this.times).toFixed(1)} ms (script and layout, ` +
      `${this.times.length} updates, ${nodes}).`;
  }
  drawAll() {
    const trace = this.get("trace");
    if (trace !== this.trace) this.open(trace);
    const some = (trace.prompts ?? []).some((prompt) => prompt.rounds.length);
    for (const node of [this.head, this.stage, this.detail.node]) node.hidden = !some;
    this.guess.node.hidden = true;
    if (!some) {
      this.text.textContent = "No round yet.";
      return false;
    }
    const prompts = trace.prompts.filter((prompt) => prompt.rounds.length);
    const prompt = prompts[clamp(this.get("prompt"), 0, prompts.length - 1)];
    const at = clamp(this.get("round"), 0, prompt.rounds.length - 1);
    this.temperatures = [0, ...trace.temperatures];
    const temperature = nearest(this.temperatures, this.get("temperature"));
    const m = nearest(trace.candidates, this.get("candidates"));
    const budget = clamp(this.get("budget"), 0, trace.settings.budget);
    this.scene = new Scene(trace, prompt, at, temperature, this.seed);
    const trees = this.panels.map((panel) => new Staged(this.scene, panel.method, m, budget));
    this.most = Math.max(...trees.map((tree) => tree.size));
    const step = this.now(), predicting = this.get("predict");
    const asked = [...this.scene.place, temperature, this.seed, budget, m].join();
    if (predicting) this.guess.draw(asked, this.scene, trees[trees.length - 1]);
    this.known = !predicting || this.guess.over;
    this.panels.forEach((panel, i) => panel.draw(trees[i], step, this.known, this.guess.revealed));
    this.which.selectedIndex = prompts.indexOf(prompt);
    this.round.set(at, prompt.rounds.length - 1, `${at + 1} of ${prompt.rounds.length}`);
    this.budget.set(budget, trace.settings.budget, String(budget));
    this.candidates.set(trace.candidates.indexOf(m), trace.candidates.length - 1, String(m));
    this.temperature.set(this.temperatures.indexOf(temperature), this.temperatures.length - 1, String(temperature));
    this.step.set(step, this.most, `${step} of ${this.most}`);
    this.again.disabled = temperature === 0;
    this.predict.checked = predicting;
    this.drawText(prompt, at);
    this.mark();
    this.follow();
    return true;
  }
  /** Scroll each tree of a new round to the end of its accepted path; but give nothing away. */
  follow() {
    const place = this.known ? this.scene.place.join() : "";
    if (place && place !== this.seen) for (const panel of this.panels) panel.follow();
    this.seen = place;
  }
  open(trace) {
    this.trace = trace;
    this.times = [];
    this.first = this.hot = null;
    this.seen = "";
    const prompts = (trace.prompts ?? []).filter((prompt) => prompt.rounds.length);
    const names = prompts.map((prompt) => prompt.prompt.replace(/\s+/g, " ").slice(0, 90));
    this.which.replaceChildren(...names.map((name) => make("option", {}, name)));
    this.whichRow.hidden = prompts.length < 2;
    this.panels = (trace.methods ?? []).map(({ name, title }) => new Panel(this, name, title));
    this.active = this.panels[this.panels.length - 1];
    this.stage.replaceChildren(...this.panels.map((panel) => panel.node));
  }
  /** The prompt, the text before this round, and what the round added to it. */
  drawText(prompt, at) {
    const { scene } = this, words = (ids) => ids.map((id) => scene.word(id)).join("");
    const first = (round, i) => (i ? "" : scene.word(round.anchor));
    const before = prompt.rounds.slice(0, at).map((round, i) => first(round, i) + words(round.emitted));
    const { anchor, emitted } = scene.record;
    const part = (look, text) => make("bdi", { className: look }, text);
    const old = before.join("") || scene.word(anchor);
    this.text.replaceChildren(make("span", { className: "dt-who" }, "Prompt: "), part("dt-asked", prompt.prompt),
      make("br"), make("span", { className: "dt-who" }, `Text, with round ${at + 1} underlined: `), part("dt-old", old),
      part("dt-new", this.known ? words(emitted) : "…"));
  }
  mark() {
    const chosen = this.get("selected"), here = chosen.round === this.place()[1] && chosen.prompt === this.place()[0];
    const known = here && chosen.node < this.scene.record.nodes.tokens.length;
    const selected = known ? chosen.node : null;
    for (const panel of this.panels) panel.mark(this.hot, selected);
    const panel = this.panels.find((p) => known && this.hot === null && p.method === chosen.method) ?? this.active;
    const node = this.hot ?? selected ?? 0;
    this.detail.draw(this.scene, this.panels, panel, node, this.known);
  }
  place() { return this.scene.place; }

  // --- one node ---

  hover(panel, node) {
    if (node === undefined || this.hot === node) return;
    this.hot = node;
    this.active = panel;
    this.mark();
    for (const other of this.panels) if (other !== panel) other.reveal(node);
  }
  leave() {
    if (this.silent || this.hot === null) return;
    this.hot = null;
    this.mark();
  }
  quietly(act) {
    this.silent = true;
    act();
    this.silent = false;
  }
  focused(panel, node) {
    panel.rove(node);
    if (this.silent) return;
    this.hot = null;
    this.hover(panel, node);
    this.say(panel, node);
  }
  say(panel, node) {
    const others = this.panels.filter((p) => p !== panel && p.staged.has(node))
      .map((p) => `${percent(p.staged.score(node))} in ${p.title}`);
    const target = this.known && node ? ` Target ${percent(this.scene.target(node))}.` : "";
    this.live.textContent = `${this.scene.path(node).map((n) => this.scene.text(n)).join("") || this.scene.text(0)}. ` +
      `Score ${percent(panel.staged.score(node))} in ${panel.title}` +
      (others.length ? `, ${others.join(", ")}.` : ", in no other tree.") + target;
  }
  select(panel, node) {
    const { scene } = this, { staged } = panel, [prompt, round] = this.place(), first = scene.record.context_length;
    const path = scene.path(node);
    this.active = panel;
    panel.rove(node);
    this.model.set("selected", {
      prompt, round, method: panel.method, node, row: staged.row.get(node), token: scene.token(node),
      text: scene.text(node), path: path.map((n) => scene.text(n)).join(""), score: staged.score(node),
      target: scene.record.target[node], position_id: first + scene.depth(node), kv_slot: first + staged.row.get(node),
    });
    this.model.save_changes();
    this.mark();
    this.say(panel, node);
  }
  close() {
    this.stop();
    for (const name of SHOWN) this.model.off(`change:${name}`, this.changed);
    for (const name of ["models", "status"]) this.model.off(`change:${name}`, this.told);
    this.model.off("change:selected", this.chosen);
    this.root.replaceChildren();
  }
}

function render({ model, el }) {
  const theatre = new Theatre(model, el);
  return () => theatre.close();
}

/** The state of a page without a kernel: the same questions as a notebook's model, answered from memory. */
export function staticModel(values) {
  const listeners = new Map();
  return {
    get: (name) => values[name],
    set(name, value) {
      if (values[name] === value) return;
      values[name] = value;
      for (const act of listeners.get(`change:${name}`) ?? []) act();
    },
    save_changes() {},
    send() {},
    on: (event, act) => listeners.set(event, [...(listeners.get(event) ?? []), act]),
    off: (event, act) => listeners.set(event, (listeners.get(event) ?? []).filter((other) => other !== act)),
  };
}

export default { render };
