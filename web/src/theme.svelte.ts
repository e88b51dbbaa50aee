export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const STORAGE_KEY = "atelier.theme";

let current = $state<Theme>(
  THEMES.find((theme) => theme === localStorage.getItem(STORAGE_KEY)) ?? "auto",
);
show();

export function theme(): Theme {
  return current;
}

export function setTheme(theme: Theme): void {
  current = theme;
  localStorage.setItem(STORAGE_KEY, theme);
  show();
}

function show(): void {
  if (current === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = current;
}
