//! The risk matrix: every tool, kind of file, command, subcommand and option that a rule names.

use super::{
    markdown::{code, table},
    repository,
    source::{Definition, Variant, definition},
};
use atelier_core::policy::limits::Limits;
use atelier_core::tools::{ToolInfo, ToolTable};
use serde::Deserialize;
use std::{collections::BTreeMap, fmt::Write};

const FILES: [(&str, &str); 6] = [
    ("look", "Commands that only look"),
    ("change", "Commands that change files"),
    ("git", "git"),
    ("packages", "Package managers"),
    ("languages", "Languages"),
    ("build", "Compilers, build tools and archives"),
];

const INTRODUCTION: &str = "\
# Risk matrix

Every rule that comes with Atelier. [gate.md](../gate.md) says what the verdicts mean and who may \
change
them; `atelier check` applies the rules to a call and names the one that decided.

- The strictest rule that matches a call decides.
- A command that is not listed here is denied, and so is a subcommand, unless the table says \
otherwise.
- An option that is not known makes a call HIGH, or stricter. The tables list only the options \
that change a
  verdict; all other known options leave the verdict as it is.
- Paths in arguments are rated like files: one that leaves the workspace is denied, one that \
names a secret
  file is HIGH, and one that is written is rated as a write.
- Where the machine cannot enforce the sandbox, every command is at least MEDIUM.
";

/// The rules as they are written in `crates/atelier-core/src/policy/rules`.
#[derive(Deserialize)]
struct Rules {
    #[serde(default)]
    group: BTreeMap<String, Options>,
    #[serde(default)]
    command: Vec<Rule>,
    #[serde(default)]
    class: Vec<Class>,
    #[serde(default)]
    refused: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    options: String,
}

#[derive(Deserialize)]
struct Rule {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    also: Vec<String>,
    verdict: String,
    says: String,
    #[serde(default)]
    operands: String,
    #[serde(default)]
    include: Vec<String>,
    #[serde(default)]
    options: String,
    otherwise: Option<String>,
    #[serde(default)]
    network: bool,
}

#[derive(Deserialize)]
struct Class {
    id: String,
    verdict: String,
    on: Vec<String>,
    reason: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    under: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
}

pub(super) fn document() -> String {
    let mut text = String::from(INTRODUCTION);
    let mut section = |title: &str, table: String| {
        write!(text, "\n## {title}\n\n{table}").expect("a string takes everything");
    };
    section("Tools", tools());
    section("Kinds of files", classes(&rules("files")));
    section("Kinds of arguments", arguments());
    for (file, title) in FILES {
        section(title, commands(&rules(file)));
    }
    section(
        "Commands that a server can allow",
        format!(
            "Denied unless the server's `[policy]` lists them under `allow`.\n\n{}",
            commands(&rules("optional"))
        ),
    );
    let refused = rules("refused").refused;
    section(
        "Commands that are denied with a reason of their own",
        table(
            ["command", "verdict", "reason"],
            refused.into_iter().map(|(name, why)| [code(&name), "DENY".into(), why]),
        ),
    );
    text
}

fn rules(file: &str) -> Rules {
    let path = repository().join(format!("crates/atelier-core/src/policy/rules/{file}.toml"));
    let text = std::fs::read_to_string(&path).expect("a file of rules");
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn tools() -> String {
    let row = |tool: ToolInfo| {
        let asks = if tool.requires_approval { "yes" } else { "no" };
        [code(tool.name), tool.usual_risk.to_string(), asks.into(), tool.description.into()]
    };
    let tools = ToolTable::builtin().available(&Limits::default());
    let note = "The verdict of a call whose file no rule below names. `execute_command` is rated \
        by its command.\n\n";
    format!(
        "{note}{}",
        table(["tool", "verdict", "asks", "what it does"], tools.into_iter().map(row))
    )
}

fn classes(rules: &Rules) -> String {
    let list = |names: &[String], suffix: &str| -> Vec<String> {
        names.iter().map(|name| code(&format!("{name}{suffix}"))).collect()
    };
    let row = |class: &Class| {
        let mut names = list(&class.names, "");
        names.extend(list(&class.under, "/**"));
        names.extend(list(&class.paths, ""));
        let verdict = class.verdict.to_uppercase();
        [code(&class.id), verdict, class.on.join(", "), class.reason.clone(), names.join(" ")]
    };
    let note = "Names are compared without regard to case. Backups of a file that is asked about \
        when it is read \
                (`.env.bak`, `id_rsa~`) count as the file itself.\n\n";
    format!(
        "{note}{}",
        table(["kind", "verdict", "when", "reason", "files"], rules.class.iter().map(row))
    )
}

/// What the rules know about arguments, from the doc comments of the enum that parses them.
fn arguments() -> String {
    let Some((_, Definition::Enum(kinds))) = definition("atelier_core", "Kind") else {
        panic!("there is no enum Kind");
    };
    let row = |kind: &Variant| {
        assert!(!kind.docs.is_empty(), "the kind of argument {} has no doc comment", kind.name);
        let mut name = String::new();
        for letter in kind.name.chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        [code(&name), kind.docs.clone()]
    };
    let note = "The tables below name the kinds of a command's arguments in their order. A star \
        stands for any \
                number. An argument can only make a verdict stricter.\n\n";
    format!("{note}{}", table(["kind", "meaning"], kinds.iter().map(row)))
}

fn commands(rules: &Rules) -> String {
    let mut rows = Vec::new();
    for rule in &rules.command {
        let parent = rule.name.rsplit_once(' ').map_or("", |(parent, _)| parent);
        let siblings = rule.aliases.iter().chain(&rule.also);
        let mut names = vec![code(&rule.name)];
        names.extend(siblings.map(|name| code(format!("{parent} {name}").trim_start())));
        let network = if rule.network { "yes" } else { "" };
        let operands = if rule.operands.is_empty() { String::new() } else { code(&rule.operands) };
        let verdict = rule.verdict.to_uppercase();
        rows.push([names.join(", "), operands, verdict, network.into(), rule.says.clone()]);
        if let Some(otherwise) = rule.otherwise.as_deref().filter(|word| *word != "operand") {
            let name = format!("{} with another subcommand", code(&rule.name));
            let reason = "The rules do not know the subcommand.".into();
            rows.push([name, String::new(), otherwise.to_uppercase(), String::new(), reason]);
        }
        let groups = rule.include.iter().map(|name| match rules.group.get(name) {
            Some(group) => group.options.as_str(),
            None => panic!("{}: there is no group {name}", rule.name),
        });
        for line in groups.chain([rule.options.as_str()]).flat_map(str::lines) {
            rows.extend(option(&rule.name, line.trim()));
        }
    }
    table(["call", "arguments", "verdict", "network", "reason"], rows)
}

/// The row of an option that changes the verdict: `-f,--force !high # It overwrites local
/// branches.`
fn option(command: &str, line: &str) -> Option<[String; 5]> {
    let (spec, reason) = line.split_once(" # ").unwrap_or((line, ""));
    let names = spec.split_whitespace().next()?;
    let verdict = spec.split_whitespace().find_map(|word| word.strip_prefix('!'));
    let writes = spec
        .split_whitespace()
        .any(|word| ["=write", "=output", "?write", "+write"].contains(&word));
    let allowed = spec.split_whitespace().find_map(|word| {
        let list = word.trim_start_matches(['=', '?']).strip_prefix("in(")?.strip_suffix(')')?;
        Some(list.replace('|', ", "))
    });
    let name = names
        .split(',')
        .map(|name| code(&format!("{command} {name}")))
        .collect::<Vec<_>>()
        .join(", ");
    match verdict {
        Some(verdict) => {
            let reason = match allowed {
                Some(values) => format!("{} (Except for: {values}.)", reason.trim()),
                None => reason.trim().to_owned(),
            };
            Some([name, String::new(), verdict.to_uppercase(), String::new(), reason])
        }
        None if writes => {
            let reason = "It writes to files.".into();
            Some([name, String::new(), "as a write".into(), String::new(), reason])
        }
        None => None,
    }
}
