//! `atelier link`: prints a link that signs a browser in once, such as the one on a phone.

use crate::remote::Remote;
use anyhow::{Context, Result};
use atelier_api::account::{LinkAddress, SignInLink};
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    remote: Remote,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let api = args.remote.client("link")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let link = runtime.block_on(api.sign_in_link())?;
    let mut out = std::io::stdout();
    let text = match args.remote.json {
        true => format!("{}\n", serde_json::to_string_pretty(&link)?),
        false => text(&link, out.is_terminal()),
    };
    out.write_all(text.as_bytes()).context("cannot print the link")?;
    Ok(ExitCode::SUCCESS)
}

/// The links, each on a line of its own. People also get a QR code of the first one.
fn text(link: &SignInLink, for_people: bool) -> String {
    let mut text = String::new();
    if let Some(first) = link.links.first().filter(|_| for_people) {
        text += &qr(first);
    }
    for address in &link.links {
        text += &format!("{}\n", address.url);
    }
    if for_people {
        let until = link.expires_at.with_timezone(&chrono::Local).format("%H:%M");
        text += &format!("The link works once, until {until}.\n");
    }
    text
}

/// The rows in pairs, one line of half blocks for each. The colours are fixed, because a reader
/// needs dark squares on a light ground, with an edge of light around them.
fn qr(link: &LinkAddress) -> String {
    const EDGE: usize = 2;
    let size = link.qr.len();
    let is_dark = |row: usize, column: usize| {
        let square = |row: usize, column: usize| {
            let row = link.qr.get(row.checked_sub(EDGE)?)?;
            row.as_bytes().get(column.checked_sub(EDGE)?).copied()
        };
        square(row, column) == Some(b'1')
    };
    let mut text = String::new();
    for row in (0..size + 2 * EDGE).step_by(2) {
        text += "\x1b[38;5;16;48;5;231m";
        for column in 0..size + 2 * EDGE {
            text.push(match (is_dark(row, column), is_dark(row + 1, column)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            });
        }
        text += "\x1b[0m\n";
    }
    text
}
