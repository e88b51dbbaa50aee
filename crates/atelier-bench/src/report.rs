//! The measurements, as a table for people and as JSON for programs.

use anyhow::Result;
use atelier_testkit::Backend;
use serde::Serialize;
use std::{fmt::Write, time::Duration};

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Milliseconds,
    Megabytes,
    Kibibytes,
}

/// The target of a figure.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aim {
    AtLeast(f64),
    AtMost(f64),
    /// At least this part of the floor.
    OfFloor(f64),
    /// At most this many times the floor.
    TimesFloor(f64),
    /// At most so much more than the floor.
    AboveFloor(f64),
}

#[derive(Serialize)]
struct Figure {
    backend: &'static str,
    name: String,
    unit: Unit,
    /// The median of the rounds.
    value: f64,
    rounds: Vec<f64>,
    floor: f64,
    floor_rounds: Vec<f64>,
    aim: Option<Aim>,
    met: Option<bool>,
}

#[derive(Serialize)]
pub(crate) struct Report {
    cores: usize,
    /// How much of the machine was idle just before the run. If it is much less than all of it,
    /// other programs affected the figures.
    idle_percent: f64,
    figures: Vec<Figure>,
    #[serde(skip)]
    backend: &'static str,
}

impl Report {
    pub(crate) async fn new() -> Result<Self> {
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            idle_percent: idle_percent().await?,
            figures: Vec::new(),
            backend: "",
        })
    }

    /// Starts the figures of a database.
    pub(crate) fn section(&mut self, backend: Backend) {
        self.title(match backend {
            Backend::Sqlite => "SQLite",
            Backend::Postgres => "PostgreSQL",
        });
    }

    /// Starts the figures of a topic.
    pub(crate) fn title(&mut self, what: &'static str) {
        self.backend = what;
    }

    /// Adds a figure from its rounds and the rounds of its floor.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        unit: Unit,
        rounds: Vec<f64>,
        floor_rounds: Vec<f64>,
        aim: Option<Aim>,
    ) {
        let (value, floor) = (median(&rounds), median(&floor_rounds));
        let met = aim.map(|aim| match aim {
            Aim::AtLeast(least) => value >= least,
            Aim::AtMost(most) => value <= most,
            Aim::OfFloor(part) => value >= floor * part,
            Aim::TimesFloor(times) => value <= floor * times,
            Aim::AboveFloor(more) => value <= floor + more,
        });
        let name = name.into();
        eprintln!("{}: {name}: {}, floor {}", self.backend, unit.show(value), unit.show(floor));
        self.figures.push(Figure {
            backend: self.backend,
            name,
            unit,
            value,
            rounds,
            floor,
            floor_rounds,
            aim,
            met,
        });
    }

    #[expect(clippy::print_stdout, reason = "what was asked for")]
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
        } else {
            print!("{}", self.table()?);
        }
        Ok(())
    }

    fn table(&self) -> Result<String> {
        let mut text =
            format!("{} cores, {:.0} % idle before the run\n", self.cores, self.idle_percent);
        let mut backend = "";
        for figure in &self.figures {
            if figure.backend != backend {
                backend = figure.backend;
                let [name, value, floor, ratio] = [backend, "Atelier", "floor", "ratio"];
                writeln!(text, "\n{name:<52} {value:>12} {floor:>12} {ratio:>6}  aim")?;
            }
            let Figure { name, value, floor, .. } = figure;
            let (shown, below) = (figure.unit.show(*value), figure.unit.show(*floor));
            let ratio = value / floor;
            write!(text, "{name:<52} {shown:>12} {below:>12} {ratio:>6.2}")?;
            if let (Some(aim), Some(met)) = (figure.aim, figure.met) {
                let aim = match aim {
                    Aim::AtLeast(least) => format!("≥ {}", figure.unit.show(least)),
                    Aim::AtMost(most) => format!("≤ {}", figure.unit.show(most)),
                    Aim::OfFloor(part) => format!("≥ {part} × floor"),
                    Aim::TimesFloor(times) => format!("≤ {times} × floor"),
                    Aim::AboveFloor(more) => format!("≤ floor + {}", figure.unit.show(more)),
                };
                write!(text, "  {aim}: {}", if met { "met" } else { "missed" })?;
            }
            text.push('\n');
        }
        Ok(text)
    }
}

/// The idle time and the total time of all cores so far, in ticks.
fn processor_time() -> Result<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = first.split_whitespace().filter_map(|t| t.parse().ok()).collect();
    Ok((ticks.get(3).copied().unwrap_or_default(), ticks.iter().sum()))
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::PerSecond => format!("{value:.0}/s"),
            Unit::Milliseconds if value < 10.0 => format!("{value:.2} ms"),
            Unit::Milliseconds => format!("{value:.0} ms"),
            Unit::Megabytes => format!("{value:.1} MB"),
            Unit::Kibibytes => format!("{value:.1} KiB"),
        }
    }
}

/// How much of the machine is idle, measured for one second.
pub(crate) async fn idle_percent() -> Result<f64> {
    let (idle, all) = processor_time()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (idle_then, all_then) = processor_time()?;
    Ok(100.0 * (idle_then - idle) / (all_then - all).max(1.0))
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
