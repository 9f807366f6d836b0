// The explorer's page: draws the panes that Python sends, keeps the focus, and sends clicks and keys back.
// No dependencies, no network. Every message carries a counter, so that two equal clicks are two messages.

const PANES = ["header", "tools", "moves", "history", "strip", "tabs", "drawer", "legend"];
const KEYS = [
  ["Tab", "header, graph, moves, history, drawer"], ["↑ ↓", "producer, consumer"], ["← →", "neighbour"],
  ["Space", "select; with Shift, add"], ["Enter", "open a folded block"], ["Esc", "clear the selection"],
  ["+ − 0", "zoom in, out, fit"], ["1 – 9", "take that move"], ["U Y", "undo, redo"], ["C", "check"],
  ["R", "run"], [".", "cancel"], ["/", "find a name"], ["?", "these keys"],
];
const LONGEST_PRESS_MS = 1500;
const READABLE = 0.8; // a name that was looked for is shown at least this large

function make(tag, cls, parent) {
  const node = document.createElement(tag);
  node.className = cls;
  parent.appendChild(node);
  return node;
}

class Page {
  constructor(model, el) {
    this.model = model;
    this.id = Math.random().toString(36).slice(2);
    this.sent = 0;
    this.drawn = {};
    this.zoom = { k: 1, x: 0, y: 0, fit: true };
    this.root = make("div", "cl-explorer", el);
    this.root.setAttribute("role", "region");
    this.root.tabIndex = -1; // a click between the buttons keeps the keys here
    this.grid = make("div", "cl-grid", this.root);
    this.pane = {};
    for (const name of ["header", "graph", "legend", "moves", "history", "strip", "tabs", "drawer"]) {
      this.pane[name] = make("div", `cl-pane cl-${name}`, this.grid);
    }
    this.pane.drawer.setAttribute("role", "tabpanel");
    this.pane.tools = make("div", "cl-tools", this.pane.graph);
    this.canvas = make("div", "cl-canvas", this.pane.graph);
    this.keys = make("div", "cl-keys", this.grid);
    this.keys.hidden = true;
    this.keys.tabIndex = -1;
    this.keys.setAttribute("role", "dialog");
    this.keys.setAttribute("aria-label", "keys");
    this.keys.innerHTML = "<h3>Keys</h3>" + KEYS.map(([k, w]) => `<div><kbd>${k}</kbd> ${w}</div>`).join("");
    this.tip = make("div", "cl-tip", this.grid);
    this.tip.hidden = true;
    this.gone = make("div", "cl-gone", this.grid);
    this.gone.hidden = true;
    this.gone.setAttribute("role", "alert");
    this.live = make("div", "cl-live", this.grid);
    this.live.setAttribute("aria-live", "polite");
    this.spoken = {};
    this.hide = make("style", "", this.root);
    this.listen();
    this.draw();
  }

  // -- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    // What a finger is on stays until it is lifted: a button drawn anew in between would get no click.
    this.isLate = this.isPressed;
    if (this.isPressed) return;
    const view = this.model.get("view");
    const focus = this.focusKey();
    this.root.setAttribute("aria-label", `schedule explorer of ${view.program ?? ""}`);
    for (const name of PANES) this.fill(name, view[name] ?? "");
    if (this.drawn.graph !== view.graph) {
      this.drawn.graph = view.graph;
      this.canvas.innerHTML = view.graph ?? "";
      this.wire(view);
    }
    this.pane.drawer.setAttribute("aria-label", this.pane.tabs.querySelector('[aria-selected="true"]')?.textContent ?? "");
    this.mark(view);
    this.refocus(focus);
    this.hide.textContent = view.mark ? `.${view.mark} { display: none !important; }` : "";
    this.speak(view.said);
    this.root.dataset.n = view.n;
  }

  speak(said) {
    // One line for each thing there is to tell: a screen reader reads those that change.
    for (const [what, words] of Object.entries(said ?? {})) {
      this.spoken[what] ??= make("p", "", this.live);
      if (this.spoken[what].textContent !== words) this.spoken[what].textContent = words;
    }
  }

  fill(name, html) {
    if (this.drawn[name] === html) return;
    const pane = this.pane[name];
    const typing = document.activeElement;
    // What is being typed, or chosen from an open list, is not taken away: the pane is drawn when the focus leaves it.
    if (typing?.tagName === "INPUT" && pane.contains(typing) && typing.value !== typing.defaultValue) return;
    if (this.choosing && pane.contains(this.choosing)) return;
    const [top, left] = [pane.scrollTop, pane.scrollLeft];
    const open = [...pane.querySelectorAll("details[open] > summary")].map((s) => s.dataset.key);
    this.drawn[name] = html;
    pane.innerHTML = html;
    this.hovering = false;
    if (name === "moves") this.nameRules(pane);
    for (const key of open) pane.querySelector(`summary[data-key="${CSS.escape(key)}"]`)?.parentElement.setAttribute("open", "");
    [pane.scrollTop, pane.scrollLeft] = [top, left];
    if (name === "drawer") this.reveal(pane);
  }

  nameRules(pane) {
    // Reasons refer to their rules by id, and a notebook may show several explorers.
    this.tip.hidden = true;
    for (const rule of pane.querySelectorAll(".cl-rule")) {
      const reason = pane.querySelector(`[aria-describedby="${rule.id}"]`);
      rule.id = `${rule.id}-${this.id}`;
      reason?.setAttribute("aria-describedby", rule.id);
    }
  }

  reveal(pane) {
    // The lines of the operation that was selected last come into view once.
    const line = pane.querySelector(".cl-line.marked");
    const kept = line?.title ?? "";
    if (line && kept !== this.revealed) pane.scrollTop = line.offsetTop - pane.offsetTop - 60;
    this.revealed = kept;
  }

  focusKey() {
    const node = document.activeElement;
    if (!node || !this.root.contains(node)) return null;
    const pane = PANES.concat("graph").find((name) => this.pane[name].contains(node));
    return { key: node.dataset.key ?? null, name: node.dataset.name ?? null, pane };
  }

  refocus(was) {
    if (!was || this.root.contains(document.activeElement)) return;
    let node = null;
    // A box is found again by its value's name: ids are places in the program, which steps change.
    if (was.name) node = [...this.boxes.values()].find((box) => box.dataset.name === was.name) ?? this.current();
    if (!node && was.key) node = this.root.querySelector(`[data-key="${CSS.escape(was.key)}"]`);
    if (!node && was.pane && was.pane !== "graph") node = this.pane[was.pane].querySelector("button, select, [tabindex]");
    node ??= this.current() ?? this.pane.header.querySelector("button");
    node?.focus({ preventScroll: true });
  }

  wire(view) {
    const svg = this.canvas.querySelector("svg");
    this.svg = svg;
    this.boxes = new Map();
    if (!svg) return;
    svg.removeAttribute("style");
    svg.setAttribute("role", "listbox");
    svg.setAttribute("aria-multiselectable", "true");
    for (const [id, label, fold, name] of view.boxes) {
      const node = svg.querySelector(`g[id$="-${id}"]`);
      if (!node) continue;
      node.dataset.box = id;
      node.dataset.name = name;
      node.setAttribute("role", "option");
      node.setAttribute("aria-label", label);
      node.setAttribute("tabindex", "-1");
      if (fold) node.classList.add("fold");
      this.boxes.set(id, node);
    }
    this.edges = view.edges;
    const box = svg.viewBox.baseVal;
    this.size = [box.width * 4 / 3, box.height * 4 / 3];
    svg.setAttribute("width", this.size[0]);
    svg.setAttribute("height", this.size[1]);
    if (this.zoom.fit) this.fit();
    else this.place();
  }

  mark(view) {
    const chosen = new Set(view.selected);
    const lit = new Set(view.changed);
    for (const [id, node] of this.boxes) {
      node.classList.toggle("selected", chosen.has(id));
      node.classList.toggle("changed", lit.has(id));
      node.setAttribute("aria-selected", chosen.has(id));
    }
    for (const group of this.canvas.querySelectorAll("g.cluster")) {
      group.classList.toggle("changed", view.changedGroups.some((id) => group.id.endsWith(`-${id}`)));
    }
    this.rove(view.selected[0]);
    if (this.isFinding && this.boxes.has(view.selected[0])) this.jump(this.boxes.get(view.selected[0]));
  }

  jump(node) {
    this.isFinding = false;
    const middle = (area) => [area.left + area.width / 2, area.top + area.height / 2];
    if (this.zoom.k < READABLE) {
      this.zoomBy(READABLE / this.zoom.k);
      const [[x, y], [ox, oy]] = [middle(node.getBoundingClientRect()), middle(this.canvas.getBoundingClientRect())];
      this.zoom = { ...this.zoom, x: this.zoom.x + ox - x, y: this.zoom.y + oy - y };
      this.place();
    }
    this.focusBox(node);
  }

  rove(wanted) {
    // One box is in the tab order: the focused one, else the selected one, else the first.
    const focused = document.activeElement?.dataset?.box;
    const id = this.boxes.has(focused) ? focused : this.boxes.has(wanted) ? wanted : this.boxes.keys().next().value;
    for (const [other, node] of this.boxes) node.setAttribute("tabindex", other === id ? "0" : "-1");
  }

  current() {
    return this.canvas.querySelector('g[tabindex="0"]');
  }

  // -- zoom --------------------------------------------------------------------------------------------------------

  fit() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    if (!this.size || !w || !h) return;
    const k = Math.min((w - 12) / this.size[0], (h - 12) / this.size[1], 1.1);
    this.zoom = { k, x: (w - k * this.size[0]) / 2, y: (h - k * this.size[1]) / 2, fit: true };
    this.place();
  }

  place() {
    if (this.svg) this.svg.style.transform = `translate(${this.zoom.x}px, ${this.zoom.y}px) scale(${this.zoom.k})`;
  }

  zoomBy(factor, x, y) {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const at = { x: x ?? w / 2, y: y ?? h / 2 };
    const k = Math.min(4, Math.max(0.05, this.zoom.k * factor));
    const ratio = k / this.zoom.k;
    this.zoom = { k, x: at.x - ratio * (at.x - this.zoom.x), y: at.y - ratio * (at.y - this.zoom.y), fit: false };
    this.place();
  }

  // -- sending -----------------------------------------------------------------------------------------------------

  send(act, arg, more) {
    this.sent += 1;
    try {
      this.model.send({ act, arg: arg ?? null, n: this.sent, ...more });
    } catch {
      this.lose();
    }
  }

  lose() {
    // No kernel answers any more: a restart, a crash, or a page that was exported.
    const { file } = this.model.get("view");
    this.gone.textContent = "No kernel is behind this page: run its cell again" + (file ? `, the history is in ${file}.` : ".");
    this.gone.hidden = false;
  }

  pick(node, add) {
    const id = node.dataset.box;
    if (!add) for (const other of this.boxes.values()) other.classList.remove("selected");
    node.classList.toggle("selected", add ? undefined : true);
    this.focusBox(node);
    this.send("select", [id], { add });
  }

  focusBox(node) {
    for (const other of this.boxes.values()) other.setAttribute("tabindex", other === node ? "0" : "-1");
    node.focus({ preventScroll: true });
    const [a, b] = [node.getBoundingClientRect(), this.canvas.getBoundingClientRect()];
    const dx = a.left < b.left ? b.left - a.left + 8 : a.right > b.right ? b.right - a.right - 8 : 0;
    const dy = a.top < b.top ? b.top - a.top + 8 : a.bottom > b.bottom ? b.bottom - a.bottom - 8 : 0;
    if (dx || dy) {
      this.zoom = { ...this.zoom, x: this.zoom.x + dx, y: this.zoom.y + dy, fit: false };
      this.place();
    }
  }

  act(node) {
    const { act, arg, copies } = node.dataset;
    if (act === "keys") this.showKeys(this.keys.hidden);
    else if (act === "copy") this.copy(copies, node);
    else if (act === "save") this.save(copies, node.dataset.file);
    else if (act.startsWith("zoom")) this.zoomAct(act);
    else if (node.getAttribute("aria-disabled") !== "true") this.send(act, arg);
  }

  showKeys(on) {
    if (on) this.before = document.activeElement;
    this.keys.hidden = !on;
    if (on) this.keys.focus({ preventScroll: true });
    else (this.before?.isConnected ? this.before : this.pane.header.querySelector('[data-key="keys"]'))?.focus({ preventScroll: true });
  }

  zoomAct(act) {
    if (act === "zoom in") this.zoomBy(1.25);
    else if (act === "zoom out") this.zoomBy(0.8);
    else this.fit();
  }

  async copy(what, button) {
    const words = this.model.get("view").copies[what];
    try {
      await navigator.clipboard.writeText(words);
      this.say(button, "Copied");
    } catch {
      const pre = this.pane.drawer.querySelector("pre");
      const range = document.createRange();
      range.selectNodeContents(pre);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      this.say(button, "Selected: press Ctrl+C");
    }
  }

  save(what, file) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.model.get("view").copies[what]], { type: "text/plain" }));
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  say(button, words) {
    const before = button.textContent;
    button.textContent = words;
    setTimeout(() => (button.textContent = before), 1800);
  }

  // -- listening ---------------------------------------------------------------------------------------------------

  listen() {
    const root = this.root;
    this.end = new AbortController();
    const on = (node, kind, work, more) => node.addEventListener(kind, work, { signal: this.end.signal, ...more });
    on(root, "click", (event) => this.onClick(event));
    // Nobody tells a page that its kernel was restarted: it asks when somebody comes to it.
    on(root, "pointerenter", () => this.send("knock"));
    on(root, "pointerdown", (event) => this.press(event), { capture: true });
    for (const kind of ["pointerup", "pointercancel"]) on(window, kind, () => setTimeout(() => this.release()), { capture: true });
    on(root, "pointerup", () => {
      if (!root.contains(document.activeElement)) root.focus({ preventScroll: true });
    });
    on(root, "dblclick", (event) => {
      const box = event.target.closest?.("g[data-box]");
      if (box?.classList.contains("fold")) this.send("open", box.dataset.box);
    });
    on(root, "change", (event) => {
      const { change, arg } = event.target.dataset;
      this.choosing = null;
      if (change) this.send(change, arg, { value: event.target.value });
    });
    // On the window and on the way down: Notebook 7 takes keys there before the page's own elements see them.
    on(window, "keydown", (event) => {
      const target = event.composedPath()[0];
      if (root.contains(target)) this.onKey(event, target);
    }, { capture: true });
    for (const kind of ["keypress", "keyup"]) on(root, kind, (event) => event.stopPropagation());
    on(root, "pointermove", (event) => this.hover(event.target));
    on(root, "focusin", (event) => {
      if (!root.contains(event.relatedTarget) && event.relatedTarget) this.send("knock");
      this.onFocus(event.target);
    });
    on(root, "focusout", (event) => {
      this.choosing = null;
      if (event.target.matches?.("input, select")) setTimeout(() => this.root.isConnected && this.draw());
    });
    for (const kind of ["pointerleave", "focusout"]) on(root, kind, () => this.outline(null));
    on(this.pane.moves, "scroll", () => (this.tip.hidden = true));
    on(this.canvas, "wheel", (event) => this.onWheel(event), { passive: false });
    on(this.canvas, "pointerdown", (event) => this.onDrag(event));
    this.onView = () => this.draw();
    this.onHeader = (message) => {
      if (message.header === undefined) return;
      this.speak(message.said);
      if (this.isPressed) return; // the next one comes soon, and the last one with everything
      const focus = this.focusKey();
      this.fill("header", message.header);
      this.refocus(focus);
    };
    this.model.on("change:view", this.onView);
    this.model.on("msg:custom", this.onHeader);
    this.watcher = new ResizeObserver(() => this.zoom.fit && this.fit());
    this.watcher.observe(this.canvas);
  }

  press(event) {
    if (!this.keys.hidden && !this.keys.contains(event.target) && !event.target.closest?.('[data-act="keys"]')) this.keys.hidden = true;
    this.choosing = event.target.closest?.("select") ?? null;
    if (this.choosing || event.target.matches?.("input")) return;
    this.isPressed = true;
    clearTimeout(this.longPress);
    this.longPress = setTimeout(() => this.release(), LONGEST_PRESS_MS);
  }

  release() {
    clearTimeout(this.longPress);
    this.isPressed = false;
    if (this.isLate && this.root.isConnected) this.draw();
  }

  onFocus(target) {
    this.outline(target);
    if (target.getAttribute?.("role") !== "treeitem") return;
    for (const row of this.pane.history.querySelectorAll('[role="treeitem"]')) row.tabIndex = row === target ? 0 : -1;
  }

  onClick(event) {
    const box = event.target.closest?.("g[data-box]");
    const actor = event.target.closest?.("[data-act]");
    if (box) this.pick(box, event.shiftKey);
    else if (actor) this.act(actor);
    else if (this.canvas.contains(event.target) && !this.dragged && event.detail < 2) this.send("clear");
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const area = this.canvas.getBoundingClientRect();
    this.zoomBy(Math.exp(-event.deltaY / 300), event.clientX - area.left, event.clientY - area.top);
  }

  onDrag(event) {
    this.dragged = false;
    if (event.button !== 0) return;
    const start = { x: event.clientX, y: event.clientY, zx: this.zoom.x, zy: this.zoom.y };
    const drag = new AbortController();
    window.addEventListener("pointermove", (move) => {
      const [dx, dy] = [move.clientX - start.x, move.clientY - start.y];
      if (!this.dragged && Math.hypot(dx, dy) < 5) return;
      this.dragged = true;
      this.zoom = { ...this.zoom, x: start.zx + dx, y: start.zy + dy, fit: false };
      this.place();
    }, { signal: drag.signal });
    for (const kind of ["pointerup", "pointercancel"]) {
      window.addEventListener(kind, () => drag.abort(), { signal: drag.signal });
    }
  }

  hover(target) {
    // A card that came under a resting pointer must not cover what the move has lit.
    if (this.hovering) this.outline(target);
    else this.explain(target);
    this.hovering = true;
  }

  explain(target) {
    // The rule of a refused move, beside its reason: over the panes, which would cut it off.
    const reason = target?.closest?.(".cl-refused");
    this.tip.hidden = !reason;
    if (!reason) return;
    this.tip.innerHTML = reason.querySelector(".cl-rule").innerHTML;
    const [at, all] = [reason.getBoundingClientRect(), this.grid.getBoundingClientRect()];
    this.tip.style.left = `${Math.max(0, Math.min(at.left - all.left, all.width - 355))}px`;
    this.tip.style.top = `${at.bottom - all.top + 4}px`;
  }

  outline(target) {
    this.explain(target);
    const card = target?.closest?.("[data-card]");
    if (target && !card && this.pane.graph.contains(target)) return;
    const ids = card ? this.model.get("view").touches[card.dataset.card] ?? [] : [];
    for (const [id, node] of this.boxes ?? []) node.classList.toggle("touched", ids.includes(id));
  }

  onKey(event, target) {
    // In JupyterLab `d d` would delete the explorer's own cell; Ctrl+S and the like stay the notebook's.
    const isChord = event.ctrlKey || event.metaKey || event.altKey;
    if (!isChord || event.key === "Enter") event.stopPropagation();
    if (isChord) return;
    if (target.tagName === "SELECT") this.choosing = ["Escape", "Tab"].includes(event.key) ? null : target;
    if (target.matches("input, select, textarea")) {
      if (event.key === "Escape" && target.tagName === "INPUT") target.value = target.defaultValue;
      this.isFinding = event.key === "Enter" && target.dataset.change === "find";
      if (event.key === "Escape" || (event.key === "Enter" && target.tagName === "INPUT")) (this.current() ?? target).focus();
      return;
    }
    const work = this.graphKey(event, target.closest?.("g[data-box]")) ?? this.tabKey(event, target) ?? this.treeKey(event, target) ?? this.anyKey(event);
    if (work) {
      event.preventDefault();
      work();
    }
  }

  graphKey(event, box) {
    if (!box) return null;
    const moves = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };
    if (event.key in moves) return () => this.step(box, moves[event.key]);
    if (event.key === " ") return () => this.pick(box, event.shiftKey);
    if (event.key === "Enter") return () => (box.classList.contains("fold") ? this.send("open", box.dataset.box) : this.pick(box, event.shiftKey));
    return null;
  }

  tabKey(event, target) {
    if (target.getAttribute?.("role") !== "tab") return null;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return null;
    const tabs = [...this.pane.tabs.querySelectorAll('[role="tab"]')];
    const next = tabs[(tabs.indexOf(target) + way + tabs.length) % tabs.length];
    return () => { next.focus(); this.act(next); };
  }

  treeKey(event, target) {
    if (target.getAttribute?.("role") !== "treeitem") return null;
    const rows = [...this.pane.history.querySelectorAll('[role="treeitem"]')];
    const at = rows.indexOf(target);
    const next = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined) return null;
    return () => rows[Math.min(Math.max(next, 0), rows.length - 1)].focus();
  }

  anyKey(event) {
    const key = event.key;
    if (event.repeat && !"+-=".includes(key)) return () => {}; // a key held down is one wish
    const plain = { u: "undo", y: "redo", c: "check", r: "run", ".": "cancel", Escape: "clear" }[key.length === 1 ? key.toLowerCase() : key];
    if (key === "Escape" && !this.keys.hidden) return () => this.showKeys(false);
    if (plain) return () => this.send(plain);
    if (/^[1-9]$/.test(key)) return () => this.root.querySelector(`[data-key="move ${key}"]`)?.click();
    if (key === "+" || key === "=") return () => this.zoomBy(1.25);
    if (key === "-") return () => this.zoomBy(0.8);
    if (key === "0") return () => this.fit();
    if (key === "?") return () => this.showKeys(this.keys.hidden);
    if (key === "/") return () => this.pane.tools.querySelector("input")?.focus();
    return null;
  }

  step(box, way) {
    const id = box.dataset.box;
    let near = [];
    if (way === "up") near = this.edges.filter(([, to]) => to === id).map(([from]) => from);
    else if (way === "down") near = this.edges.filter(([from]) => from === id).map(([, to]) => to);
    else near = this.beside(box, way);
    const next = near.map((other) => this.boxes.get(other)).find(Boolean);
    if (next) this.focusBox(next);
  }

  beside(box, way) {
    const middle = (node) => { const r = node.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; };
    const [x, y] = middle(box);
    const sign = way === "left" ? -1 : 1;
    return [...this.boxes]
      .map(([id, node]) => { const [ox, oy] = middle(node); return { id, dx: (ox - x) * sign, dy: Math.abs(oy - y) }; })
      .filter(({ dx }) => dx > 2)
      .sort((a, b) => a.dx + 4 * a.dy - b.dx - 4 * b.dy)
      .map(({ id }) => id);
  }

  close() {
    this.end.abort();
    this.watcher.disconnect();
    this.model.off("change:view", this.onView);
    this.model.off("msg:custom", this.onHeader);
    this.root.remove();
  }
}

export default {
  render({ model, el }) {
    const page = new Page(model, el);
    return () => page.close();
  },
};
