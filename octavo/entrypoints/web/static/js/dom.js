// Making elements. Text only ever becomes text nodes.

/**
 * An element. `class` and attributes by name; `on…` functions are listeners; `dataset` is an object;
 * null, undefined and false leave an attribute out, true sets it empty. Children are nodes or text;
 * what is false or empty is left out.
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

const SHAPES = {
  plus: "M12 5v14M5 12h14",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M6 6h12v12H6z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  list: "M4 7h16M4 12h16M4 17h10",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  key: "M8 10a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM11.3 11.7 20 3M16 7l3 3M13.5 9.5l2 2",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  moon: "M20 14A8 8 0 0 1 10 4a8 8 0 1 0 10 10z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  close: "M6 6l12 12M18 6L6 18",
};

/** A small drawing, of which the label of its button says what it means. */
export function glyph(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", "glyph");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", SHAPES[name]);
  svg.append(path);
  return svg;
}

/** What a custom property of the style sheet is now, as a colour that a canvas takes. */
export function cssColor(name) {
  const probe = el("span", { hidden: true });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** Put a tooltip beside a rectangle of the window, where there is room. */
export function placeBeside(tip, box) {
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left), window.innerWidth - width - 8);
  const below = box.bottom + 8;
  const top = below + height > window.innerHeight ? Math.max(8, box.top - height - 8) : below;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}
