"""What a reader of the page can do: point at a value, filter by protocol and group, enlarge a drawing and move in it.

The script is a part of the page. It reads what the drawings carry (`data-places`, `data-series`, `data-group`) and asks
nobody for anything.
"""

from collections.abc import Sequence
from html import escape
from typing import Final


def render_filters(protocols: Sequence[str], groups: Sequence[str]) -> str:
    """Buttons that hide and show; a page with one protocol and without groups has none."""
    rows = []
    for kind, label, names in (("series", "Protocols", protocols), ("group", "Groups", groups)):
        if len(names) > 1:
            buttons = "".join(
                f'<button type="button" aria-pressed="true" data-kind="{kind}" data-name="{escape(name, quote=True)}">'
                f"{escape(name)}</button>"
                for name in names
            )
            every = f'<button type="button" class="every" data-kind="{kind}">all</button>'
            rows.append(f'<div role="group" aria-label="{label}"><span>{label}</span>{buttons}{every}</div>')
    return f'<nav class="tools" hidden>{"".join(rows)}</nav>' if rows else ""


CSS: Final = """
.tools{position:sticky;top:0;z-index:3;background:var(--paper);border-bottom:1px solid var(--grid);padding:.5rem 0;
margin:1.4rem 0;font-size:.85rem}
.tools div{display:flex;flex-wrap:wrap;gap:.35rem;align-items:center;margin:.15rem 0}
.tools span{color:var(--soft);min-width:5.2rem}
.tools button,.enlarge,dialog button{font:inherit;color:var(--ink);background:var(--wash);border:1px solid var(--grid);
border-radius:999px;padding:.1rem .7rem;cursor:pointer}
.tools button[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.off{display:none!important}
.enlarge{position:absolute;right:0;top:0;font-size:.78rem;color:var(--soft)}
figure.drawn .enlarge{position:static;display:block;margin:.4rem 0 0 auto}
.hint{position:fixed;z-index:9;pointer-events:none;max-width:20rem;background:var(--ink);color:var(--paper);
padding:.3rem .6rem;border-radius:6px;font-size:.8rem;line-height:1.35}
.ring{fill:none;stroke:var(--ink);stroke-width:1.4;pointer-events:none}
dialog{width:96vw;height:94vh;max-width:none;max-height:none;border:1px solid var(--grid);border-radius:10px;
background:var(--paper);color:var(--ink);padding:.6rem}
dialog>div{display:flex;gap:.4rem;align-items:center;height:2rem}dialog>div span{margin-right:auto;color:var(--soft);
font-size:.85rem}
dialog svg{width:100%;height:calc(94vh - 4.6rem);display:block;cursor:grab;touch-action:none;min-width:0!important}
dialog .panels{overflow:auto;height:calc(94vh - 4.6rem)}dialog .panels svg{height:auto}
@media(max-width:36rem){.tools{position:static}}
""".replace("\n", "")

SCRIPT: Final = """
(() => {
"use strict";
const all = (what, where = document) => [...where.querySelectorAll(what)];
const hidden = { series: new Set(), group: new Set() };
const isHidden = (series) => [...hidden.series].some((name) => series === name || series.startsWith(name + " "));

// Filters: whatever shows a protocol or a group says so in an attribute.
function apply() {
  all("[data-series]").forEach((one) => one.classList.toggle("off", isHidden(one.dataset.series)));
  all("[data-group]").forEach((one) => one.classList.toggle("off", hidden.group.has(one.dataset.group)));
  all(".tools button[data-name]").forEach((one) =>
    one.setAttribute("aria-pressed", String(!hidden[one.dataset.kind].has(one.dataset.name))));
}
all(".tools").forEach((bar) => {
  bar.hidden = false;
  bar.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const set = hidden[button.dataset.kind], name = button.dataset.name;
    if (!name) set.clear();
    else if (event.detail === 2) {
      all(`.tools button[data-kind=${button.dataset.kind}][data-name]`).forEach((one) => set.add(one.dataset.name));
      set.delete(name);
    } else if (!set.delete(name)) set.add(name);
    apply();
  });
});

// Hints: the value nearest to the pointer.
const hint = document.createElement("div");
hint.className = "hint";
hint.hidden = true;
hint.setAttribute("role", "status");
document.body.append(hint);
const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
ring.setAttribute("class", "ring");
ring.setAttribute("r", "5.5");
const NEAR = 28;
function point(event) {
  const svg = event.currentTarget, matrix = svg.getScreenCTM();
  if (!matrix) return;
  const places = svg.places || (svg.places = JSON.parse(svg.dataset.places));
  let best = null, least = NEAR;
  for (const place of places) {
    if (isHidden(place[3])) continue;
    const x = matrix.a * place[0] + matrix.e, y = matrix.d * place[1] + matrix.f;
    const far = Math.hypot(x - event.clientX, y - event.clientY);
    if (far < least) { least = far; best = place; }
  }
  if (!best) return leave();
  ring.setAttribute("cx", best[0]);
  ring.setAttribute("cy", best[1]);
  svg.append(ring);
  (svg.closest("dialog") || document.body).append(hint);
  hint.textContent = best[2];
  hint.hidden = false;
  hint.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - hint.offsetWidth - 8)) + "px";
  hint.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - hint.offsetHeight - 8)) + "px";
}
function leave() { hint.hidden = true; ring.remove(); }
const listen = (svg) => { svg.addEventListener("pointermove", point); svg.addEventListener("pointerleave", leave); };
all("svg[data-places]").forEach(listen);

// A drawing of its own window: the wheel and the buttons zoom, dragging moves, two clicks go back.
const dialog = document.createElement("dialog");
document.body.append(dialog);
dialog.addEventListener("close", leave);
function move(svg) {
  const whole = svg.getAttribute("viewBox").split(" ").map(Number);
  let box = whole.slice();
  const show = () => svg.setAttribute("viewBox", box.join(" "));
  const zoom = (factor, x = box[0] + box[2] / 2, y = box[1] + box[3] / 2) => {
    const width = Math.min(whole[2], Math.max(whole[2] / 60, box[2] * factor)), part = width / box[2];
    box = [x - (x - box[0]) * part, y - (y - box[1]) * part, width, box[3] * part];
    show();
  };
  const place = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = place(event);
    zoom(event.deltaY < 0 ? 0.8 : 1.25, at.x, at.y);
  }, { passive: false });
  let from = null;
  svg.addEventListener("pointerdown", (event) => { from = place(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointerup", () => { from = null; });
  svg.addEventListener("pointermove", (event) => {
    if (!from) return;
    const at = place(event);
    box[0] += from.x - at.x; box[1] += from.y - at.y;
    show();
  });
  svg.addEventListener("dblclick", () => { box = whole.slice(); show(); });
  return zoom;
}
function enlarge(figure) {
  const source = figure.querySelector(".panels") || figure.querySelector("svg");
  const copy = source.cloneNode(true);
  copy.removeAttribute("width"); copy.removeAttribute("height");
  const bar = document.createElement("div"), title = document.createElement("span");
  title.textContent = "wheel: zoom, drag: move, two clicks: whole, Esc: close";
  bar.append(title);
  const add = (text, act) => {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = text; button.onclick = act; bar.append(button);
  };
  const holder = document.createElement("section");
  holder.style.margin = 0;
  holder.className = source.closest(".scroll") ? source.closest(".scroll").className.replace("scroll", "") : "";
  holder.append(copy);
  const zooms = (copy.tagName === "svg" ? [copy] : all("svg", copy)).map((svg) => {
    if (svg.dataset.places) listen(svg);
    return move(svg);
  });
  add("+", () => zooms.forEach((zoom) => zoom(0.7)));
  add("\\u2212", () => zooms.forEach((zoom) => zoom(1.4)));
  add("close", () => dialog.close());
  dialog.replaceChildren(bar, holder);
  dialog.showModal();
}
all("figure").forEach((figure) => {
  if (!figure.querySelector("svg")) return;
  const button = document.createElement("button");
  button.type = "button"; button.className = "enlarge"; button.textContent = "enlarge";
  button.onclick = () => enlarge(figure);
  figure.append(button);
});
})();
"""
