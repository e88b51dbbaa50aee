//! Checks of the examples in rules. Each rule has examples of what it matches and what it does not
//! match. A test checks those of the built-in rules; a server checks those of its own rules when it
//! starts.

use super::{
    Policy, RuleError,
    call::{Command, ToolCall},
    files::FileClass,
};
use crate::path::{Roots, WorkspacePath};

impl Policy {
    /// Judges every example of these rules, and fails at the first that does not get the verdict it
    /// states. Returns how many examples there are.
    pub(super) fn check_examples(
        &self,
        rules: &super::RuleFile,
        files: &[FileClass],
    ) -> Result<usize, RuleError> {
        let mut count = 0;
        for data in &rules.command {
            for example in data.examples.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let wrong = |found: String| RuleError::Example {
                    rule: data.name.clone(),
                    example: example.to_owned(),
                    found,
                };
                let (expected, line) =
                    example.split_once(": ").ok_or_else(|| wrong("no verdict".into()))?;
                let judged = self.judge(&ToolCall::from(command(line)), &Roots::relative_only());
                if !judged.verdict.as_str().eq_ignore_ascii_case(expected) {
                    return Err(wrong(format!(
                        "{} by {}: {}",
                        judged.verdict, judged.rule, judged.reason
                    )));
                }
                count += 1;
            }
        }
        for class in files {
            count += class.check_examples()?;
        }
        Ok(count)
    }
}

/// Parses the command line of an example: words, and single quotes around words with spaces.
fn command(line: &str) -> Command {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    let mut words = words.into_iter();
    let command = words.next().unwrap_or_default();
    Command { command, args: words.collect(), timeout: None, cwd: WorkspacePath::root() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::verdict::Verdict;
    use std::collections::HashSet;

    #[test]
    fn every_builtin_example_is_as_it_says() {
        let policy = Policy::builtin();
        let mut count = 0;
        for rules in &policy.sources {
            count += policy.check_examples(rules, &[]).unwrap();
        }
        assert!(count > 700, "{count} examples");
        let classes = policy.files.classes();
        assert!(policy.check_examples(&super::super::RuleFile::default(), classes).unwrap() > 50);
        let ignore = classes.iter().find(|class| class.id == "ignore").unwrap();
        assert_eq!(ignore.check_examples(), Ok(6), "three that match and three that do not");
    }

    #[test]
    fn every_command_has_examples_of_what_it_may_and_may_not() {
        for data in Policy::builtin().sources.iter().flat_map(|file| &file.command) {
            let verdicts: HashSet<&str> = data
                .examples
                .lines()
                .filter_map(|line| Some(line.trim().split_once(": ")?.0))
                .collect();
            // A subcommand whose arguments are all harmless, or all refused, has one verdict.
            let one = ["echo", "true"].contains(&data.name.as_str()) || data.name.contains(' ');
            assert!(verdicts.len() > usize::from(!one), "{} lacks examples", data.name);
        }
        for class in Policy::builtin().files.classes() {
            assert!(class.has_both_examples(), "{} lacks examples", class.id);
        }
    }

    #[test]
    fn every_refusal_begins_with_the_same_words() {
        for line in [
            "rm -rf /",
            "sudo ls",
            "curl x",
            "bash -lc ls",
            "ls2",
            "/tmp/ls -la",
            "bin/cat x",
            "git pwn",
        ] {
            let call = ToolCall::from(command(line));
            let judged = Policy::builtin().judge(&call, &Roots::relative_only());
            let denied = (Verdict::Deny, Some(crate::FailureCode::CommandNotAllowed));
            assert_eq!((judged.verdict, judged.code), denied, "{line}");
            assert!(judged.reason.starts_with("Command not allowed"), "{line}: {}", judged.reason);
        }
    }
}
