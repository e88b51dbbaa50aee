//! Every metric, checked against the places that record it.

use super::{
    markdown::{code, table},
    source::files,
};
use crate::metrics::{METRICS, Metric};
use regex::Regex;
use std::collections::BTreeSet;

pub(super) fn document() -> String {
    let recorded = recorded();
    let described: BTreeSet<(String, String)> =
        METRICS.iter().map(|metric| (metric.kind.as_str().into(), metric.name.into())).collect();
    assert_eq!(
        described, recorded,
        "described in metrics.rs (left) and recorded by the code (right)"
    );
    let row =
        |metric: &Metric| [code(metric.name), metric.kind.as_str().into(), metric.help.into()];
    format!(
        "# Metrics\n\n\
         `GET /metrics` has these in Prometheus text format. Histograms have buckets; figures are \
         those of one node.\n\n{}",
        table(["metric", "kind", "meaning"], METRICS.iter().map(row)),
    )
}

fn recorded() -> BTreeSet<(String, String)> {
    let call =
        Regex::new(r#"\b(counter|gauge|histogram)!\(\s*"(atelier_[a-z_]+)""#).expect("a pattern");
    let mut found = BTreeSet::new();
    for file in files() {
        for call in call.captures_iter(&file.text) {
            found.insert((call[1].to_owned(), call[2].to_owned()));
        }
    }
    found
}
