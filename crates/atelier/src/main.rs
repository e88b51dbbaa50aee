//! `atelier`: one binary for the server and its clients.

mod backup;
mod chat;
mod check;
mod config;
mod connect;
mod doctor;
mod entrance;
mod files;
mod layers;
mod lists;
mod login;
mod logout;
mod mcp;
mod mcp_conversations;
mod mcp_mounts;
mod mcp_projects;
mod memory;
mod metrics;
mod migrate;
mod models;
#[cfg(test)]
mod reference;
mod remote;
mod serve;
mod sessions;
mod telemetry;
mod token;
mod tool;
mod usage;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The workspace server for AI agents.
///
/// Agents run on the server. Your files stay on your machine. You approve what agents do with them.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Start the server
    Serve(serve::Args),
    /// Print a new token for a user of this server
    Token(token::Args),
    /// Store a token for a server, so that other commands can use it
    Login(login::Args),
    /// End the session of the stored token, or all your sessions
    Logout(logout::Args),
    /// List what is signed in as you, and end it
    Sessions(sessions::Args),
    /// Give a project's agents access to a folder, with your approval
    Connect(connect::Args),
    /// Talk with agents in this folder, or send one message (also: `atelier` alone)
    Chat(chat::Args),
    /// List the models that agents can use, and manage keys of their providers
    Models(models::Args),
    /// List your projects
    Projects(lists::Projects),
    /// List a project's agents, and the models that answer for them
    Agents(lists::OfProject),
    /// List a project's conversations
    Conversations(lists::OfProject),
    /// List what waits for your approval
    Approvals(lists::Approvals),
    /// List a project's tasks
    Tasks(lists::OfProject),
    /// Show the tokens and the money that agents have used, and what is left of budgets
    Usage(usage::Args),
    /// Show how the rules rate a command, a path or tool calls, and why
    Check(check::Args),
    /// Run one tool call in a folder, with rules and sandbox, and print its result
    Tool(tool::Args),
    /// List what scripts have changed in a layer over a folder
    Changes(layers::ChangesArgs),
    /// Put changes of a layer into the folder
    Land(layers::PathsArgs),
    /// Throw changes of a layer away
    Discard(layers::PathsArgs),
    /// Bring files back as they were before a change
    Undo(layers::UndoArgs),
    /// List, upload and download the files of a conversation
    Files(files::Args),
    /// Serve a folder to MCP hosts, on standard input or over HTTP
    Mcp(Box<mcp::Args>),
    /// Search, export, import and delete what an agent remembers
    Memory(memory::Args),
    /// Copy everything that the server keeps to a folder, a .tar file or a bucket
    Backup(backup::BackupArgs),
    /// Bring back a server from a backup
    Restore(backup::RestoreArgs),
    /// Move everything to another database, such as from SQLite to PostgreSQL
    Migrate(migrate::Args),
    /// Check the configuration and all services, and say how to fix problems
    Doctor(doctor::Args),
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

fn main() -> ExitCode {
    // The whole program uses one TLS implementation. ring builds fast and everywhere.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        unreachable!("nothing else has chosen a TLS provider yet");
    }
    let cli = Cli::parse();
    // `atelier` alone, in a folder, is a session with the agents.
    let command = cli.command.unwrap_or_else(|| Command::Chat(chat::Args::of_bare_command()));
    let outcome = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Login(args) => login::run(&args),
        Command::Logout(args) => logout::run(args),
        Command::Sessions(args) => sessions::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Models(args) => models::run(args),
        Command::Projects(args) => lists::projects(&args),
        Command::Agents(args) => lists::agents(&args),
        Command::Conversations(args) => lists::conversations(&args),
        Command::Approvals(args) => lists::approvals(&args),
        Command::Tasks(args) => lists::tasks(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Tool(args) => tool::run(&args),
        Command::Changes(args) => layers::changes(&args),
        Command::Land(args) => layers::land(&args),
        Command::Discard(args) => layers::discard(&args),
        Command::Undo(args) => layers::undo(&args),
        Command::Files(args) => files::run(args),
        Command::Mcp(args) => mcp::run(*args),
        Command::Memory(args) => memory::run(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match outcome {
        Ok(code) => code,
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.downcast_ref().is_some_and(is_broken_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atelier: {error:#}");
            ExitCode::FAILURE
        }
    }
}
