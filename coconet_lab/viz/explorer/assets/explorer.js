// The explorer's page: draws the panes that Python sends, keeps the focus, and sends clicks and keys back.
// No dependencies, no network. Every message carries a counter, so that two equal clicks are two messages.

const PANES = ["header", "tools", "moves", "history", "strip", "tabs", "drawer", "legend"];
const LONGEST_PRESS_MS = 1500;

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
    this.canvas = new Canvas(make("div", "cl-canvas", this.pane.graph));
    this.keys = new Keys(this, make("div", "cl-keys", this.grid));
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
      this.canvas.show(view);
    }
    this.pane.drawer.setAttribute("aria-label", this.pane.tabs.querySelector('[aria-selected="true"]')?.textContent ?? "");
    this.canvas.mark(view);
    this.showFound(view.selected[0]);
    this.refocus(focus);
    this.hide.textContent = view.mark ? `.${view.mark} { display: none !important; }` : "";
    this.speak(view.said);
    this.root.dataset.n = view.n;
  }

  showFound(id) {
    if (!this.isFinding || !this.canvas.boxes.has(id)) return;
    this.isFinding = false;
    this.canvas.jump(this.canvas.boxes.get(id));
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
    if (was.name) node = this.canvas.named(was.name) ?? this.canvas.current();
    if (!node && was.key) node = this.root.querySelector(`[data-key="${CSS.escape(was.key)}"]`);
    if (!node && was.pane && was.pane !== "graph") node = this.pane[was.pane].querySelector("button, select, [tabindex]");
    node ??= this.canvas.current() ?? this.pane.header.querySelector("button");
    node?.focus({ preventScroll: true });
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
    this.canvas.choose(node, add);
    this.send("select", [node.dataset.box], { add });
  }

  act(node) {
    const { act, arg, copies } = node.dataset;
    if (act === "keys") this.keys.toggle();
    else if (act === "copy") this.copy(copies, node);
    else if (act === "save") this.save(copies, node.dataset.file);
    else if (act.startsWith("zoom")) this.zoomAct(act);
    else if (node.getAttribute("aria-disabled") !== "true") this.send(act, arg);
  }

  zoomAct(act) {
    if (act === "zoom in") this.canvas.zoomBy(1.25);
    else if (act === "zoom out") this.canvas.zoomBy(0.8);
    else this.canvas.fit();
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
      if (root.contains(target)) this.keys.pressed(event, target);
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
  }

  press(event) {
    this.keys.leave(event.target);
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
    else if (this.canvas.element.contains(event.target) && !this.canvas.dragged && event.detail < 2) this.send("clear");
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
    this.canvas.touch(ids);
  }

  close() {
    this.end.abort();
    this.canvas.close();
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
