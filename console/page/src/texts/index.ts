/**
 * What the page says, in the language of whoever reads it: `t.overview.waiting`, `t.counts.leases(3)`.
 *
 * The browser's languages decide, or the switch in the header, which is remembered. The language is chosen before anything else
 * of the page runs, so that texts can be taken anywhere, also once for all at the beginning of a module; the switch begins
 * the page anew. English comes with the page, others are loaded when they are wanted.
 */
import { en } from "./en";

/** Each language has all of these: the compiler says what it lacks. */
export type Texts = typeof en;
type Language = keyof typeof LANGUAGES;

const LANGUAGES = { en: async () => en, zh: async () => (await import("./zh")).zh };
const KEY = "aliquot-language";

export const language = chosen();
export const t: Texts = await LANGUAGES[language]();
document.documentElement.lang = t.locale;

/** A text by a word that the pool has said; undefined: there is none for it. */
export const byWord = (texts: Record<string, string>, word: string): string | undefined => texts[word];

export function turnLanguage(): void {
  try {
    localStorage.setItem(KEY, language === "en" ? "zh" : "en");
  } catch {
    // A browser that keeps nothing stays with its own language.
  }
  location.reload();
}

function chosen(): Language {
  const wanted = [stored(), ...navigator.languages].map((each) => each?.slice(0, 2).toLowerCase() ?? "");
  return wanted.find((each): each is Language => each in LANGUAGES) ?? "en";
}

function stored(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}
