// What each key does, and the panel that says so.

const KEYS = [
  ["Tab", "header, graph, moves, history, drawer"], ["↑ ↓", "producer, consumer"], ["← →", "neighbour"],
  ["Space", "select; with Shift, add"], ["Enter", "open a folded block"], ["Esc", "clear the selection"],
  ["+ − 0", "zoom in, out, fit"], ["1 – 9", "take that move"], ["U Y", "undo, redo"], ["C", "check"],
  ["R", "run"], [".", "cancel"], ["/", "find a name"], ["?", "these keys"],
];
const SENT = { u: "undo", y: "redo", c: "check", r: "run", ".": "cancel", Escape: "clear" };
const WAYS = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };

class Keys {
  constructor(page, panel) {
    this.page = page;
    this.panel = panel;
    panel.hidden = true;
    panel.tabIndex = -1;
    panel.setAttribute("role", "dialog");
    panel.setAttribute("aria-label", "keys");
    panel.innerHTML = "<h3>Keys</h3>" + KEYS.map(([k, w]) => `<div><kbd>${k}</kbd> ${w}</div>`).join("");
  }

  toggle() {
    if (this.panel.hidden) {
      this.before = document.activeElement;
      this.panel.hidden = false;
      this.panel.focus({ preventScroll: true });
      return;
    }
    this.panel.hidden = true;
    const back = this.before?.isConnected ? this.before : this.page.pane.header.querySelector('[data-key="keys"]');
    back?.focus({ preventScroll: true });
  }

  leave(target) {
    // A press elsewhere closes the panel, and takes the focus with it.
    if (!this.panel.contains(target) && !target.closest?.('[data-act="keys"]')) this.panel.hidden = true;
  }

  pressed(event, target) {
    // In JupyterLab `d d` would delete the explorer's own cell; Ctrl+S and the like stay the notebook's.
    const isChord = event.ctrlKey || event.metaKey || event.altKey;
    if (!isChord || event.key === "Enter") event.stopPropagation();
    if (isChord) return;
    if (target.matches("input, select, textarea")) {
      this.typed(event, target);
      return;
    }
    const box = target.closest("g[data-box]");
    const work = this.ofBox(event, box) ?? this.ofTab(event, target) ?? this.ofTree(event, target) ?? this.anywhere(event);
    if (work) {
      event.preventDefault();
      work();
    }
  }

  typed(event, target) {
    const page = this.page;
    const isInput = target.tagName === "INPUT";
    if (target.tagName === "SELECT") page.choosing = ["Escape", "Tab"].includes(event.key) ? null : target;
    if (event.key === "Escape" && isInput) target.value = target.defaultValue;
    page.isFinding = event.key === "Enter" && target.dataset.change === "find";
    if (event.key === "Escape" || (event.key === "Enter" && isInput)) (page.canvas.current() ?? target).focus();
  }

  ofBox(event, box) {
    if (!box) return null;
    const { page } = this;
    if (event.key in WAYS) return () => page.canvas.step(box, WAYS[event.key]);
    if (event.key === "Enter" && box.classList.contains("fold")) return () => page.send("open", box.dataset.box);
    if (event.key === " " || event.key === "Enter") return () => page.pick(box, event.shiftKey);
    return null;
  }

  ofTab(event, target) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (target.getAttribute("role") !== "tab" || !way) return null;
    const tabs = [...this.page.pane.tabs.querySelectorAll('[role="tab"]')];
    const next = tabs[(tabs.indexOf(target) + way + tabs.length) % tabs.length];
    return () => { next.focus(); this.page.act(next); };
  }

  ofTree(event, target) {
    if (target.getAttribute("role") !== "treeitem") return null;
    const rows = [...this.page.pane.history.querySelectorAll('[role="treeitem"]')];
    const at = rows.indexOf(target);
    const next = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined) return null;
    return () => rows[Math.min(Math.max(next, 0), rows.length - 1)].focus();
  }

  anywhere(event) {
    const { page } = this;
    const { key } = event;
    if (event.repeat && !"+-=".includes(key)) return () => {}; // a key held down is one wish
    if (key === "?" || (key === "Escape" && !this.panel.hidden)) return () => this.toggle();
    const sent = SENT[key.length === 1 ? key.toLowerCase() : key];
    if (sent) return () => page.send(sent);
    if (/^[1-9]$/.test(key)) return () => page.root.querySelector(`[data-key="move ${key}"]`)?.click();
    if (key === "+" || key === "=") return () => page.canvas.zoomBy(1.25);
    if (key === "-") return () => page.canvas.zoomBy(0.8);
    if (key === "0") return () => page.canvas.fit();
    if (key === "/") return () => page.pane.tools.querySelector("input")?.focus();
    return null;
  }
}
