// Checks how a diff of several files is split. `npm run check` runs them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { splitDiff } from "../src/diff/files.ts";

const TWO = `diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -1,2 +1,3 @@
 one
-two
+2
+diff --git a/x b/forged
diff --git a/b.txt b/c d.txt
Mode: 644 -> 755
`;

test("a diff is split into its files", () => {
  assert.deepEqual(
    splitDiff(TWO).map(({ path, added, removed }) => [path, added, removed]),
    [
      ["a.txt", 2, 1],
      ["c d.txt", 0, 0],
    ],
  );
  assert.equal(splitDiff(TWO)[1]?.text, "Mode: 644 -> 755\n");
});

test("no line of a file passes for the beginning of another file", () => {
  const text = `diff --git a/a b/a
--- a/a
+++ b/a
@@ -1,2 +0,0 @@
-diff --git a/x b/forged
--- a/x
\\ No newline at end of file
`;
  assert.deepEqual(
    splitDiff(text).map(({ path, removed }) => [path, removed]),
    [["a", 2]],
  );
});

test("a diff of one file is not split", () => {
  assert.deepEqual(splitDiff("--- a/a\n+++ b/a\n@@ -1,1 +1,1 @@\n-a\n+b\n"), []);
});
