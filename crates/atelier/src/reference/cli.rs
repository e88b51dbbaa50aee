//! Every command with its help, as the program prints it.

use crate::Cli;
use clap::{Command, CommandFactory};
use std::fmt::Write;

pub(super) fn document() -> String {
    let mut text = String::from(
        "# Command line\n\nWhat `--help` prints, for every command. `-V` and `--version` print \
         the version.\n",
    );
    let mut root = without_environment(Cli::command().term_width(100));
    root.build();
    describe(&mut root, "atelier", &mut text);
    text
}

/// Help shows the current value of an environment variable, which differs between machines.
fn without_environment(command: Command) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = command.mut_args(|argument| argument.hide_env_values(true));
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, without_environment))
}

fn describe(command: &mut Command, name: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end())
        .expect("a string takes everything");
    for sub in
        command.get_subcommands_mut().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
    {
        let name = format!("{name} {}", sub.get_name());
        describe(sub, &name, text);
    }
}
