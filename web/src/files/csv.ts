/** Enough to see what is in a table; the rest is for a spreadsheet. */
const MOST_ROWS = 500;

/** Reads comma-, semicolon- or tab-separated values (RFC 4180), as many rows as are shown. */
export function parseTable(text: string): { rows: string[][]; cut: boolean } {
  const separator = [",", ";", "\t"].reduce((best, one) => (count(text, one) > count(text, best) ? one : best));
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
        if (rows.length >= MOST_ROWS) return { rows, cut: at < text.length - 1 };
        rows.push([]);
      }
    } else {
      cell += character;
    }
  }
  if (cell !== "" || rows.at(-1)?.length) rows.at(-1)?.push(cell.replace(/\r$/, ""));
  return { rows: rows.filter((row) => row.length > 0), cut: false };
}

/** How often it stands in the first line, quoted parts left out. */
function count(text: string, one: string): number {
  return (text.split("\n", 1)[0] ?? "").replace(/"[^"]*"/g, "").split(one).length;
}
