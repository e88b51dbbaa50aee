import { en } from "./en";
import type { Values, Key, Messages } from "./messages";

export const LANGUAGES = { en: "English", ru: "Русский", ja: "日本語" } as const;
export type Language = keyof typeof LANGUAGES;

const STORAGE_KEY = "atelier.language";
const load: Record<Language, () => Promise<Messages>> = {
  en: async () => en,
  ru: async () => (await import("./ru")).ru,
  ja: async () => (await import("./ja")).ja,
};

let current = $state.raw<{ language: Language; messages: Messages }>({
  language: "en",
  messages: en,
});

export function language(): Language {
  return current.language;
}

/** The locale for dates and numbers, which differ between regions of the same language. */
export function region(): string {
  return (
    navigator.languages.find((tag) => tag.split("-")[0] === current.language) ?? current.language
  );
}

export async function setLanguage(language: Language): Promise<void> {
  localStorage.setItem(STORAGE_KEY, language);
  current = { language, messages: await load[language]() };
  document.documentElement.lang = language;
}

/** Loads the language that was chosen before, or the first of the browser's languages that the console has. */
export async function startLanguage(): Promise<void> {
  const wanted = [
    localStorage.getItem(STORAGE_KEY),
    ...navigator.languages.map((tag) => tag.split("-")[0]),
  ];
  const language = wanted.find((tag): tag is Language => !!tag && tag in LANGUAGES) ?? "en";
  current = { language, messages: await load[language]() };
  document.documentElement.lang = language;
}

export function t<K extends Key>(key: K, ...args: Values<K>): string {
  const values: Record<string, string | number> = args[0] ?? {};
  const message: Messages[Key] = current.messages[key];
  const text = typeof message === "string" ? message : pick(message, Number(values.n));
  return text.replace(/\{(\w+)\}/g, (placeholder, name: string) => {
    const value = values[name];
    return typeof value === "number" ? number(value) : (value ?? placeholder);
  });
}

function pick(forms: Exclude<Messages[Key], string>, n: number): string {
  return forms[new Intl.PluralRules(current.language).select(n)] ?? forms.other;
}

/** Whether there is a text with this key; for keys made from names that the server sends. */
export function isKey(name: string): name is Key {
  return name in en;
}

export function number(value: number): string {
  return new Intl.NumberFormat(region()).format(value);
}
