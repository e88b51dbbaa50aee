// The rules find mistakes; Prettier takes care of the formatting. `npm run lint` runs both.
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";
import svelteConfig from "./svelte.config.js";

export default ts.config(
  { ignores: ["dist", "src/api/schema.d.ts"] },
  ...ts.configs.recommended,
  ...svelte.configs.recommended,
  {
    files: ["**/*.svelte", "**/*.svelte.ts"],
    languageOptions: {
      globals: globals.browser,
      parserOptions: { parser: ts.parser, svelteConfig },
    },
  },
  {
    files: ["src/**/*.ts", "src/**/*.svelte", "tests/**/*.ts", "checks/**/*.ts"],
    languageOptions: {
      parserOptions: { projectService: true, extraFileExtensions: [".svelte"] },
    },
    rules: {
      // A promise that nobody waits for loses its error.
      "@typescript-eslint/no-floating-promises": [
        "error",
        { allowForKnownSafeCalls: [{ from: "package", package: "node:test", name: ["test"] }] },
      ],
    },
  },
  {
    rules: {
      // `== null` is the one comparison that means both `null` and `undefined`.
      "eqeqeq": ["error", "always", { null: "ignore" }],
      // Texts come from models and other people and must never become markup.
      "svelte/no-at-html-tags": "error",
      // Reactive collections are replaced as a whole (`$state.raw`), so plain maps and sets are fine.
      "svelte/prefer-svelte-reactivity": "off",
      // `{" "}` is how a template keeps a space at the end of a line.
      "svelte/no-useless-mustaches": "off",
      // The rule is for SvelteKit; `router.svelte.ts` makes the addresses of this console.
      "svelte/no-navigation-without-resolve": "off",
    },
  },
);
