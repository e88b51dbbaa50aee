/** Hands something to the person as a file. */
export function save(content: Blob, path: string): void {
  // Without its type: the browser keeps it instead of opening it.
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = path.split("/").at(-1) ?? path;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
