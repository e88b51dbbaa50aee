//! Points at which a test can make the program crash, to show that nothing is left half done. Debug
//! builds only.

/// Aborts the program here, as `kill -9` would, if `ATELIER_CRASH_AT` names this point.
pub(crate) fn point(name: &str) {
    #[cfg(debug_assertions)]
    if std::env::var("ATELIER_CRASH_AT").is_ok_and(|at| at == name) {
        std::process::abort();
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}
