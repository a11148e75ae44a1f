// Light, dark, or as the system: what was chosen is kept in this browser.

import { byId, h, render } from "./dom.js";

const KEPT_AS = "stash-theme";
const ORDER = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

const chosen = () => {
  try {
    return ORDER.includes(localStorage.getItem(KEPT_AS)) ? localStorage.getItem(KEPT_AS) : "system";
  } catch {
    return document.documentElement.dataset.theme ?? "system";
  }
};

export function showTheme(theme = chosen()) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  render(
    byId("theme"),
    h("span", { "aria-hidden": "true" }, SIGNS[theme]),
    h("span", { class: "unseen" }, `theme: ${theme}`),
  );
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEPT_AS, next);
  } catch {
    /* a browser that keeps nothing has it until it is reloaded */
  }
  showTheme(next);
}
