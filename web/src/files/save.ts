/** Offers a file for download. */
export function save(content: Blob, path: string): void {
  // A generic type makes the browser save the file instead of opening it.
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = path.split("/").at(-1) ?? path;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
