// Loaded together when the first of them is opened.
export { default as Palette } from "./Palette.svelte";
export { default as KeySheet } from "./KeySheet.svelte";
