import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

/** Puts a gzipped copy beside every file that gets smaller by it; the server sends it to whoever takes it. */
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
