// Checks that types cannot express: translations and font sizes. `npm run check` runs them.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { en } from "../src/i18n/en.ts";
import { ja } from "../src/i18n/ja.ts";
import { ru } from "../src/i18n/ru.ts";
import { splitInvisible } from "../src/ui/invisibleCharacters.ts";

type Text = string | Partial<Record<Intl.LDMLPluralRule, string>>;
const LANGUAGES: Record<string, Record<string, Text>> = { en, ru, ja };
const SOURCES = join(import.meta.dirname, "../src");

const forms = (text: Text): string[] => (typeof text === "string" ? [text] : Object.values(text));
const placeholders = (text: string) => [...new Set(text.match(/\{\w+\}/g))].sort();

for (const [language, messages] of Object.entries(LANGUAGES)) {
  test(`${language} has the keys and placeholders of English, and its own plural forms`, () => {
    assert.deepEqual(Object.keys(messages).sort(), Object.keys(en).sort());
    const { pluralCategories } = new Intl.PluralRules(language).resolvedOptions();
    for (const [key, text] of Object.entries(messages)) {
      const expected = placeholders(forms(en[key as keyof typeof en]).join());
      for (const form of forms(text)) assert.deepEqual(placeholders(form), expected, key);
      if (typeof text !== "string") {
        assert.deepEqual(Object.keys(text).sort(), [...pluralCategories].sort(), key);
      }
    }
  });
}

test("every tool has a title in every language", () => {
  const file = readFileSync(join(SOURCES, "api/tools.json"), "utf8");
  const tools = JSON.parse(file) as { name: string }[];
  const known = tools.map(({ name }) => `tool.${name}`);
  for (const [language, messages] of Object.entries(LANGUAGES))
    assert.deepEqual(
      known.filter((key) => !(key in messages)),
      [],
      language,
    );
});

const sources = readdirSync(SOURCES, { recursive: true, encoding: "utf8" })
  .filter((path) => /\.(ts|svelte|css)$/.test(path) && !path.startsWith("api/schema"))
  .map((path) => ({ path, text: readFileSync(join(SOURCES, path), "utf8") }));

test("every text is used", () => {
  const code = sources.filter(({ path }) => !path.startsWith("i18n/")).map(({ text }) => text);
  const all = code.join("\n");
  // Keys such as `task.${status}` are built from a prefix.
  const prefixes = [...all.matchAll(/`([a-z_.]+\.)\$\{/gi)].map(([, prefix = ""]) => prefix);
  const isUsed = (key: string) =>
    all.includes(`"${key}"`) || prefixes.some((prefix) => key.startsWith(prefix));
  assert.deepEqual(
    Object.keys(en).filter((key) => !isUsed(key)),
    [],
  );
});

test("font sizes are tokens", () => {
  const literal = /\bfont(?:-size)?:\s*[\d.]+(?:px|r?em|%)/;
  const found = sources
    .filter(({ path }) => path !== "styles/tokens.css")
    .filter(({ text }) => literal.test(text));
  assert.deepEqual(
    found.map(({ path }) => path),
    [],
  );
});

test("characters that cannot be seen are shown by their code point", () => {
  const shown = (text: string, prose = false) =>
    splitInvisible(text, prose)
      .map((piece) => (piece.invisible ? `⟨${piece.text}⟩` : piece.text))
      .join("");
  const hidden =
    "\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u180e\u2003\u200b\u200d\u200e\u202e\u202f\u2060\u2065\u2800\u3000\u3164\ufe0f\ufeff\uffa0\ufff9\u{e0041}\u{e0100}\u001b\u2215";
  for (const character of hidden) {
    const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
    assert.equal(shown(`a${character}b`), `a⟨U+${code}⟩b`);
  }
  for (const plain of ["", "naïve café\n\t", "Привет, мир", "日本語、", "x – y … “z”", "👍"])
    assert.equal(shown(plain), plain);
  assert.equal(
    shown(".\u0435nv p\u0430th \u0430\u043d\u0430"),
    ".⟨U+0435⟩nv p⟨U+0430⟩th \u0430\u043d\u0430",
  );
  assert.equal(shown("10\u202f% \u3000❤\ufe0f\u202e", true), "10\u202f% \u3000❤\ufe0f⟨U+202E⟩");
});
