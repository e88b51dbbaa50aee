//! Finds the known name that somebody probably meant.

/// A longer text is not a misspelt name, and comparing it with every known name would take long.
const LONGEST: usize = 200;

/// The known name that is most like `given`; `None` if all known names differ in more than a third
/// of their letters.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > LONGEST {
        return None;
    }
    let given = given.to_lowercase();
    let distance = |name: &str| strsim::osa_distance(&given, &name.to_lowercase());
    let (distance, name) = known
        .into_iter()
        .map(|name| (distance(name), name))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (given.chars().count() / 3).max(1)).then_some(name)
}

/// A sentence that suggests the nearest known name, or lists all of them if none is near.
pub fn suggestion<'a>(given: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(given, known.clone()) {
        Some(name) => format!("did you mean {name}?"),
        None => {
            let known: Vec<&str> = known.into_iter().take(20).collect();
            format!("known are {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_name_is_suggested() {
        let known = ["planner", "policy", "limits"];
        assert_eq!(nearest("planer", known), Some("planner"));
        assert_eq!(nearest("Limit", known), Some("limits"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"x".repeat(10_000), known), None);
        assert_eq!(suggestion("planer", known), "did you mean planner?");
        assert_eq!(suggestion("colour", known), "known are planner, policy, limits");
    }
}
