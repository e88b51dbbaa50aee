/** More rows than this are not previewed. */
const MAX_ROWS = 500;

/** Reads comma-, semicolon- or tab-separated values (RFC 4180), up to the number of rows that are shown. */
export function parseTable(text: string): { rows: string[][]; truncated: boolean } {
  const separator = [",", ";", "\t"].reduce((best, next) =>
    count(text, next) > count(text, best) ? next : best,
  );
  const rows: string[][] = [[]];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const character = text[at] ?? "";
    if (quoted) {
      if (character !== '"') cell += character;
      else if (text[at + 1] === '"') cell += text[at++];
      else quoted = false;
    } else if (character === '"' && cell === "") {
      quoted = true;
    } else if (character === separator || character === "\n") {
      rows.at(-1)?.push(cell.replace(/\r$/, ""));
      cell = "";
      if (character === "\n") {
        if (rows.length >= MAX_ROWS) return { rows, truncated: at < text.length - 1 };
        rows.push([]);
      }
    } else {
      cell += character;
    }
  }
  if (cell !== "" || rows.at(-1)?.length) rows.at(-1)?.push(cell.replace(/\r$/, ""));
  return { rows: rows.filter((row) => row.length > 0), truncated: false };
}

/** How often a separator occurs in the first line, outside quotes. */
function count(text: string, separator: string): number {
  return (text.split("\n", 1)[0] ?? "").replace(/"[^"]*"/g, "").split(separator).length;
}
