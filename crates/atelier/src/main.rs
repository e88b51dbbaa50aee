//! `atelier`: one binary for the server and for those who use it.

mod chat;
mod check;
mod config;
mod connect;
mod doctor;
mod files;
mod login;
mod mcp;
mod mcp_conversations;
mod mcp_mounts;
mod mcp_projects;
mod memory;
mod metrics;
#[cfg(test)]
mod reference;
mod serve;
mod telemetry;
mod token;
mod tool;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The workspace server for AI agents.
///
/// Agents run on the server, your files stay on your machine, and between them stands a gate that asks you.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the server
    Serve(serve::Args),
    /// Make a token for a user of this server and print it
    Token(token::Args),
    /// Store a token for a server, for the commands that talk to it
    Login(login::Args),
    /// Connect a folder to a project, so that agents can work in it with your consent
    Connect(connect::Args),
    /// Say something to agents, and follow what comes of it
    Chat(chat::Args),
    /// Ask what the rules of Atelier say to a command, a path or tool calls, and why
    Check(check::Args),
    /// Run one tool call in a workspace, through policy and sandbox, and print its result
    Tool(tool::Args),
    /// List, upload and download the files of a conversation
    Files(files::Args),
    /// Serve a directory to MCP hosts, on standard input or over HTTP
    Mcp(Box<mcp::Args>),
    /// Look into what an agent remembers, take it along as a file, prune it
    Memory(memory::Args),
    /// Check the configuration and every backing service, and say how to mend what is wrong
    Doctor(doctor::Args),
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

fn main() -> ExitCode {
    // One TLS implementation for the whole program; ring builds everywhere and fast.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        unreachable!("nothing else has chosen a TLS provider yet");
    }
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Login(args) => login::run(&args),
        Command::Connect(args) => connect::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Check(args) => check::run(&args),
        Command::Tool(args) => tool::run(&args),
        Command::Files(args) => files::run(args),
        Command::Mcp(args) => mcp::run(*args),
        Command::Memory(args) => memory::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match outcome {
        Ok(code) => code,
        // Nobody reads on, as with `| head`.
        Err(error) if error.downcast_ref().is_some_and(is_broken_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atelier: {error:#}");
            ExitCode::FAILURE
        }
    }
}
