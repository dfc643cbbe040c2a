/** Light or dark: what the system says, or what somebody chose here. */
import { signal } from "@preact/signals";

export type Theme = "" | "light" | "dark";
const KEY = "aliquot-theme";

export const theme = signal<Theme>("");

export function startTheme(): void {
  const kept = stored();
  apply(kept === "light" || kept === "dark" ? kept : "");
}

export function turnTheme(): void {
  const dark = theme.value ? theme.value === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  apply(dark ? "light" : "dark");
}

function apply(wanted: Theme): void {
  theme.value = wanted;
  if (wanted) document.documentElement.dataset.theme = wanted;
  else delete document.documentElement.dataset.theme;
  try {
    if (wanted) localStorage.setItem(KEY, wanted);
  } catch {
    // A browser that keeps nothing asks again next time.
  }
}

function stored(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}
