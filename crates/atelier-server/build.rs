//! The console is embedded from `web/dist`: building it must rebuild the crate that holds it.

use std::{env, fs, path::PathBuf};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    // Without `..`: the embedding checks that files are beneath the folder, by the text of their
    // paths.
    let root = fs::canonicalize(&root).unwrap_or(root);
    println!("cargo:rustc-env=ATELIER_CONSOLE_DIST={}", root.join("web/dist").display());
    println!("cargo:rerun-if-changed={}", root.join("web/dist").display());
}
