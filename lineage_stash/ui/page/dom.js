// Elements, and bringing what is shown up to date without touching what has not changed: focus, scrolling and
// selections stay where they are. Nothing is ever parsed as HTML, so no name of an actor can be a tag.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set([
  "svg",
  "g",
  "path",
  "rect",
  "circle",
  "line",
  "text",
  "tspan",
  "title",
  "polygon",
  "defs",
  "marker",
  "clipPath",
  "ellipse",
  "polyline",
]);

/** An element with attributes and children; null, false and undefined are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.entries(value).forEach(([key, one]) => element.style.setProperty(key, one));
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Make the children of `parent` like those that are given. Those with a `data-key` keep their identity. */
export function render(parent, ...children) {
  const fresh = document.createDocumentFragment();
  fresh.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  patchChildren(parent, fresh);
}

function patchChildren(parent, fresh) {
  const kept = new Map();
  for (const child of parent.children) if (child.dataset?.key) kept.set(child.dataset.key, child);
  let place = parent.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const keyed = wanted.nodeType === Node.ELEMENT_NODE && wanted.dataset?.key;
    let old = keyed ? kept.get(wanted.dataset.key) : place;
    if (keyed && old && old !== place) {
      parent.insertBefore(old, place);
    } else if (!keyed && old?.dataset?.key) {
      old = null;
    }
    if (old && isAlike(old, wanted)) {
      patch(old, wanted);
      place = old.nextSibling;
    } else {
      parent.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function isAlike(old, wanted) {
  return (
    old.nodeType === wanted.nodeType &&
    old.nodeName === wanted.nodeName &&
    (old.dataset?.key ?? "") === (wanted.dataset?.key ?? "")
  );
}

function patch(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !isOwn(old, name)) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) === value || isOwn(old, name)) continue;
    if (name === "style")
      old.style.cssText = wanted.style.cssText; // as an attribute, the page's policy refuses it
    else old.setAttribute(name, value);
  }
  if (!old.hasAttribute("data-own")) patchChildren(old, wanted);
}

// What the user does to an element is not undone: the text of a field, and which row of a table the keys are at.
function isOwn(element, name) {
  return (
    (element.nodeName === "INPUT" && name === "value") ||
    (name === "tabindex" && element.hasAttribute("data-row")) ||
    (element.nodeName === "DETAILS" && name === "open")
  );
}

export const byId = (id) => document.getElementById(id);
