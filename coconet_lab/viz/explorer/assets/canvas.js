// The graph's drawing: boxes that can be found, marked and walked through with keys, and a zoom.

const READABLE = 0.8; // a name that was looked for is shown at least this large

function middle(node) {
  const area = node.getBoundingClientRect();
  return [area.left + area.width / 2, area.top + area.height / 2];
}

class Canvas {
  constructor(element) {
    this.element = element;
    this.boxes = new Map(); // id → the group of the drawing
    this.edges = [];
    this.zoom = { k: 1, x: 0, y: 0, fit: true };
    this.watcher = new ResizeObserver(() => this.zoom.fit && this.fit());
    this.watcher.observe(element);
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.drag(event));
  }

  close() {
    this.watcher.disconnect();
  }

  // -- drawing and marking -----------------------------------------------------------------------------------------

  show(view) {
    this.element.innerHTML = view.graph ?? "";
    const svg = this.element.querySelector("svg");
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
    for (const group of this.element.querySelectorAll("g.cluster")) {
      group.classList.toggle("changed", view.changedGroups.some((id) => group.id.endsWith(`-${id}`)));
    }
    this.rove(view.selected[0]);
  }

  jump(node) {
    // To a box that was looked for: near enough to be read, and in the middle.
    if (this.zoom.k < READABLE) {
      this.zoomBy(READABLE / this.zoom.k);
      const [[x, y], [ox, oy]] = [middle(node), middle(this.element)];
      this.zoom = { ...this.zoom, x: this.zoom.x + ox - x, y: this.zoom.y + oy - y };
      this.place();
    }
    this.focus(node);
  }

  rove(wanted) {
    // One box is in the tab order: the focused one, else the selected one, else the first.
    const focused = document.activeElement?.dataset?.box;
    const id = this.boxes.has(focused) ? focused : this.boxes.has(wanted) ? wanted : this.boxes.keys().next().value;
    for (const [other, node] of this.boxes) node.setAttribute("tabindex", other === id ? "0" : "-1");
  }

  current() {
    return this.element.querySelector('g[tabindex="0"]');
  }

  named(name) {
    return [...this.boxes.values()].find((box) => box.dataset.name === name);
  }

  choose(node, add) {
    // Shown at once; Python's answer says the same.
    if (!add) for (const other of this.boxes.values()) other.classList.remove("selected");
    node.classList.toggle("selected", add ? undefined : true);
    this.focus(node);
  }

  touch(ids) {
    for (const [id, node] of this.boxes) node.classList.toggle("touched", ids.includes(id));
  }

  // -- zoom --------------------------------------------------------------------------------------------------------

  fit() {
    const { clientWidth: w, clientHeight: h } = this.element;
    if (!this.size || !w || !h) return;
    const k = Math.min((w - 12) / this.size[0], (h - 12) / this.size[1], 1.1);
    this.zoom = { k, x: (w - k * this.size[0]) / 2, y: (h - k * this.size[1]) / 2, fit: true };
    this.place();
  }

  place() {
    if (this.svg) this.svg.style.transform = `translate(${this.zoom.x}px, ${this.zoom.y}px) scale(${this.zoom.k})`;
  }

  zoomBy(factor, x, y) {
    const { clientWidth: w, clientHeight: h } = this.element;
    const at = { x: x ?? w / 2, y: y ?? h / 2 };
    const k = Math.min(4, Math.max(0.05, this.zoom.k * factor));
    const ratio = k / this.zoom.k;
    this.zoom = { k, x: at.x - ratio * (at.x - this.zoom.x), y: at.y - ratio * (at.y - this.zoom.y), fit: false };
    this.place();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const area = this.element.getBoundingClientRect();
    this.zoomBy(Math.exp(-event.deltaY / 300), event.clientX - area.left, event.clientY - area.top);
  }

  drag(event) {
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

  // -- walking -----------------------------------------------------------------------------------------------------

  focus(node) {
    for (const other of this.boxes.values()) other.setAttribute("tabindex", other === node ? "0" : "-1");
    node.focus({ preventScroll: true });
    const [a, b] = [node.getBoundingClientRect(), this.element.getBoundingClientRect()];
    const dx = a.left < b.left ? b.left - a.left + 8 : a.right > b.right ? b.right - a.right - 8 : 0;
    const dy = a.top < b.top ? b.top - a.top + 8 : a.bottom > b.bottom ? b.bottom - a.bottom - 8 : 0;
    if (dx || dy) {
      this.zoom = { ...this.zoom, x: this.zoom.x + dx, y: this.zoom.y + dy, fit: false };
      this.place();
    }
  }

  step(box, way) {
    const id = box.dataset.box;
    let near = [];
    if (way === "up") near = this.edges.filter(([, to]) => to === id).map(([from]) => from);
    else if (way === "down") near = this.edges.filter(([from]) => from === id).map(([, to]) => to);
    else near = this.beside(box, way);
    const next = near.map((other) => this.boxes.get(other)).find(Boolean);
    if (next) this.focus(next);
  }

  beside(box, way) {
    const [x, y] = middle(box);
    const sign = way === "left" ? -1 : 1;
    return [...this.boxes]
      .map(([id, node]) => { const [ox, oy] = middle(node); return { id, dx: (ox - x) * sign, dy: Math.abs(oy - y) }; })
      .filter(({ dx }) => dx > 2)
      .sort((a, b) => a.dx + 4 * a.dy - b.dx - 4 * b.dy)
      .map(({ id }) => id);
  }
}
