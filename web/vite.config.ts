import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, loadEnv } from "vite";
import { compress } from "./compress.js";

const API = ["/auth", "/my", "/api", "/health", "/metrics", "/docs", "/openapi.json"];

export default defineConfig(({ mode }) => {
  const { ATELIER_URL = "http://127.0.0.1:7420" } = loadEnv(mode, ".", "ATELIER_");
  return {
    plugins: [svelte(), compress()],
    build: {
      target: "es2022",
      // The first versions with `light-dark()`, which the colours use.
      cssTarget: ["chrome123", "firefox120", "safari17.5"],
      // The content security policy allows nothing inline, and the server serves only `/` and `/assets/*`.
      assetsInlineLimit: 0,
      modulePreload: { polyfill: false },
    },
    server: { proxy: Object.fromEntries(API.map((path) => [path, ATELIER_URL])) },
  };
});
