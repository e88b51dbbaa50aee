import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

/** Writes a gzipped copy of every file that becomes smaller; the server sends it to clients that accept gzip. */
export function compress() {
  return {
    name: "compress",
    apply: "build",
    writeBundle({ dir }, bundle) {
      for (const file of Object.keys(bundle)) {
        const whole = readFileSync(join(dir, file));
        const packed = gzipSync(whole, { level: 9 });
        if (packed.length < whole.length) writeFileSync(join(dir, `${file}.gz`), packed);
      }
    },
  };
}
