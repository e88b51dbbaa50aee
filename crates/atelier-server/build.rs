//! The console is embedded from `web/dist`: building it must rebuild the crate that holds it.

fn main() {
    println!("cargo:rerun-if-changed=../../web/dist");
}
