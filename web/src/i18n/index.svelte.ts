import { en } from "./en";
import type { Filling, Key, Messages } from "./messages";

export const LANGUAGES = { en: "English", ru: "Русский", ja: "日本語" } as const;
export type Language = keyof typeof LANGUAGES;

const KEPT = "atelier.language";
const load: Record<Language, () => Promise<Messages>> = {
  en: async () => en,
  ru: async () => (await import("./ru")).ru,
  ja: async () => (await import("./ja")).ja,
};

let current = $state.raw<{ language: Language; messages: Messages }>({ language: "en", messages: en });

export function language(): Language {
  return current.language;
}

/** The language as this person's region writes it: dates and numbers differ within one language. */
export function region(): string {
  return navigator.languages.find((tag) => tag.split("-")[0] === current.language) ?? current.language;
}

export async function setLanguage(language: Language): Promise<void> {
  localStorage.setItem(KEPT, language);
  current = { language, messages: await load[language]() };
  document.documentElement.lang = language;
}

/** The language chosen here before, or the first of the browser's that the console speaks. */
export async function startLanguage(): Promise<void> {
  const wanted = [localStorage.getItem(KEPT), ...navigator.languages.map((tag) => tag.split("-")[0])];
  const language = wanted.find((tag): tag is Language => !!tag && tag in LANGUAGES) ?? "en";
  current = { language, messages: await load[language]() };
  document.documentElement.lang = language;
}

export function t<K extends Key>(key: K, ...filling: Filling<K>): string {
  const values: Record<string, string | number> = filling[0] ?? {};
  const message: Messages[Key] = current.messages[key];
  const text = typeof message === "string" ? message : pick(message, Number(values.n));
  return text.replace(/\{(\w+)\}/g, (hole, name: string) => {
    const value = values[name];
    return typeof value === "number" ? number(value) : (value ?? hole);
  });
}

function pick(forms: Exclude<Messages[Key], string>, n: number): string {
  return forms[new Intl.PluralRules(current.language).select(n)] ?? forms.other;
}

/** Whether there is a text of this name: for names that come from the server. */
export function isKey(name: string): name is Key {
  return name in en;
}

export function number(value: number): string {
  return new Intl.NumberFormat(region()).format(value);
}
