//! Turns JSON parameters into checked arguments, and arguments back into JSON in canonical form.
//!
//! All errors in the shape of the parameters are reported at once. Paths, globs and limits are
//! checked after that, and only the first error is reported.

use super::{Kind, Param, Presence, Surface, TextLimit};
use crate::{
    path::{Roots, WorkspacePath},
    policy::{
        call::{CallError, Edit},
        hosts::host_names,
        limits::Limits,
        pattern::GlobPattern,
    },
};
use serde_json::{Map, Value};
use uuid::Uuid;

/// The value of one parameter, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arg {
    Absent,
    Path(WorkspacePath),
    Text(String),
    Glob(GlobPattern),
    Number(u64),
    Flag(bool),
    /// The index of the choice, counted from 0.
    Choice(usize),
    Edits(Vec<Edit>),
    Words(Vec<String>),
    Paths(Vec<WorkspacePath>),
}

/// The parameters of one edit.
pub(super) static EDIT: &[Param] = &[
    Param::required(
        "old_text",
        Kind::Text(TextLimit::None),
        "Text to replace, exactly as it is in the file",
    )
    .aliases(&["old_string"]),
    Param::required("new_text", Kind::Text(TextLimit::None), "Text to put in its place")
        .aliases(&["new_string"]),
    Param::default(
        "replace_all",
        Kind::Flag,
        "Replace every occurrence; otherwise there must be exactly one",
    ),
];

/// The rules that parameters are checked by.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) surface: Surface,
    pub(crate) roots: &'a Roots,
    pub(crate) limits: &'a Limits,
}

/// Checks parameters. The arguments come in the order of `params`.
pub(crate) fn arguments(
    params: &[Param],
    given: Map<String, Value>,
    rules: Rules<'_>,
) -> Result<Vec<Arg>, CallError> {
    let mut parser = Parser { given, rules, missing: Vec::new(), wrong: Vec::new(), refused: None };
    let args = params.iter().map(|param| parser.argument(param)).collect();
    parser.finish()?;
    Ok(args)
}

struct Parser<'a> {
    given: Map<String, Value>,
    rules: Rules<'a>,
    missing: Vec<&'static str>,
    wrong: Vec<String>,
    /// The first path, glob or limit that is violated.
    refused: Option<CallError>,
}

impl Parser<'_> {
    fn argument(&mut self, param: &Param) -> Arg {
        if !param.is_on(self.rules.surface) {
            return Arg::Absent;
        }
        let value = match param.kind {
            Kind::Edits => self.take(param).or_else(|| self.take_single_edit()),
            _ => self.take(param),
        };
        let Some(value) = value else { return self.absent(param) };
        match self.checked(param, value) {
            Ok(arg) => arg,
            Err(Fault::Shape(expected)) => {
                self.wrong.push(format!("Parameter '{}' must be {expected}", param.name));
                Arg::Absent
            }
            Err(Fault::Refused(error)) => {
                self.refused.get_or_insert(error);
                Arg::Absent
            }
        }
    }

    /// Takes a parameter out of the given ones. Many hosts write `null` for a parameter that is not
    /// given.
    fn take(&mut self, param: &Param) -> Option<Value> {
        let mut take = |name: &str| self.given.remove(name).filter(|value| !value.is_null());
        let named = take(param.name);
        match self.rules.surface {
            Surface::Gate => named.or_else(|| param.aliases.iter().find_map(|alias| take(alias))),
            Surface::Mcp => named,
        }
    }

    /// Calls through the gate may give a single edit next to the path, without a list.
    fn take_single_edit(&mut self) -> Option<Value> {
        if self.rules.surface == Surface::Mcp {
            return None;
        }
        let fields =
            EDIT.iter().filter_map(|param| Some((param.name.to_owned(), self.take(param)?)));
        let edit: Map<String, Value> = fields.collect();
        (!edit.is_empty()).then(|| Value::Array(vec![edit.into()]))
    }

    fn absent(&mut self, param: &Param) -> Arg {
        if param.is_required(self.rules.surface) {
            self.missing.push(param.name);
        }
        if param.presence == Presence::Optional { Arg::Absent } else { default(param.kind) }
    }

    fn checked(&self, param: &Param, value: Value) -> Result<Arg, Fault> {
        let Rules { roots, limits, surface } = self.rules;
        Ok(match (param.kind, value) {
            (Kind::File(_) | Kind::Path(_) | Kind::Entry(_), Value::String(raw)) => {
                let path = WorkspacePath::parse(&raw, roots).map_err(CallError::from)?;
                let is_file = matches!(param.kind, Kind::File(_)) && surface == Surface::Gate;
                if is_file && path.demands_directory() {
                    return Err(CallError::NotAFile(path).into());
                }
                Arg::Path(path)
            }
            (Kind::Text(limit), Value::String(text)) => {
                check_text(limit, &text, limits)?;
                Arg::Text(text)
            }
            (Kind::Glob(_), Value::String(text)) => {
                Arg::Glob(GlobPattern::parse(&text).map_err(CallError::from)?)
            }
            (Kind::Checksum, Value::String(sum)) if is_checksum(&sum) => Arg::Text(sum),
            (Kind::Checksum, _) => {
                return Err(Fault::Shape("the `checksum` of an earlier result".into()));
            }
            (Kind::Number { most }, value) => match whole(&value) {
                Some(number) => Arg::Number(number.min(most)),
                None => return Err(Fault::Shape("a whole number, 0 or more".into())),
            },
            (Kind::Timeout(time), value) => {
                let asked = whole(&value)
                    .ok_or_else(|| Fault::Shape("a whole number, 0 or more".into()))?;
                let limit = time.most(limits);
                if asked == 0 || asked > u64::from(limit) {
                    return Err(CallError::Timeout { asked, limit }.into());
                }
                Arg::Number(asked)
            }
            (Kind::Id, Value::String(id)) => match Uuid::try_parse(&id) {
                Ok(id) => Arg::Text(id.to_string()),
                Err(_) => return Err(Fault::Shape("an id, as calls and events have it".into())),
            },
            (Kind::Flag, Value::Bool(flag)) => Arg::Flag(flag),
            (Kind::Flag, _) => return Err(Fault::Shape("true or false".into())),
            (Kind::Choice(choices), Value::String(text)) => {
                let is_meant = |name: &str| name == text;
                let at = choices
                    .iter()
                    .position(|choice| is_meant(choice.name) || choice.alias.is_some_and(is_meant));
                match at {
                    Some(at) => Arg::Choice(at),
                    None => return Err(Fault::Shape(one_of(param.kind))),
                }
            }
            (Kind::Choice(_), _) => return Err(Fault::Shape(one_of(param.kind))),
            (Kind::Edits, Value::Array(list)) => Arg::Edits(self.edits(list)?),
            (Kind::Words, Value::Array(list)) => {
                let words = texts(list)?;
                check_words(&words, limits)?;
                Arg::Words(words)
            }
            (Kind::Names(names), Value::Array(list)) => {
                let words = texts(list)?;
                if words.iter().any(|word| !names.contains(&word.as_str())) {
                    return Err(Fault::Shape(format!("a list of {}", names.join(", "))));
                }
                Arg::Words(words)
            }
            (Kind::Hosts, Value::Array(list)) => {
                Arg::Words(host_names(&texts(list)?).map_err(CallError::Params)?)
            }
            (Kind::Paths, Value::Array(list)) => {
                let words = texts(list)?;
                check_words(&words, limits)?;
                if words.is_empty() {
                    return Err(Fault::Shape("a list with at least one path".into()));
                }
                let paths = words.iter().map(|raw| WorkspacePath::parse(raw, roots));
                Arg::Paths(paths.collect::<Result<_, _>>().map_err(CallError::from)?)
            }
            (Kind::Edits | Kind::Words | Kind::Names(_) | Kind::Hosts | Kind::Paths, _) => {
                return Err(Fault::Shape("a list".into()));
            }
            _ => return Err(Fault::Shape("a string".into())),
        })
    }

    fn edits(&self, list: Vec<Value>) -> Result<Vec<Edit>, CallError> {
        let Rules { limits, .. } = self.rules;
        let edits = list.into_iter().map(|edit| {
            let Value::Object(fields) = edit else {
                return Err(CallError::Params("Every edit must be an object".into()));
            };
            let mut edit =
                Edit { old_text: String::new(), new_text: String::new(), replace_all: false };
            let args = arguments(EDIT, fields, self.rules)?;
            for (param, arg) in EDIT.iter().zip(args) {
                match (param.name, arg) {
                    ("old_text", Arg::Text(text)) => edit.old_text = text,
                    (_, Arg::Text(text)) => edit.new_text = text,
                    (_, Arg::Flag(all)) => edit.replace_all = all,
                    _ => {}
                }
            }
            Ok(edit)
        });
        let edits = edits.collect::<Result<Vec<_>, _>>()?;
        if edits.is_empty()
            || edits.len() > limits.edits
            || edits.iter().any(|e| e.old_text.is_empty())
        {
            let why = format!("give 1 to {} edits, each with an `old_text`", limits.edits);
            return Err(CallError::Params(why));
        }
        within(
            edits.iter().map(|e| e.old_text.len() + e.new_text.len()).sum(),
            limits.write_bytes,
        )?;
        Ok(edits)
    }

    fn finish(self) -> Result<(), CallError> {
        let mut problems = self.wrong;
        if !self.missing.is_empty() {
            problems.insert(0, format!("Missing required parameters: {}", self.missing.join(", ")));
        }
        // Unknown parameters are refused, because a person who approves a call would believe that a
        // parameter which is silently dropped (`env`, `shell`) has an effect.
        if !self.given.is_empty() {
            let unknown: Vec<&str> = self.given.keys().map(String::as_str).collect();
            problems.push(format!("Unknown parameters: {}", unknown.join(", ")));
        }
        match self.refused {
            _ if !problems.is_empty() => Err(CallError::Params(problems.join("; "))),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// An error in one parameter.
enum Fault {
    /// The value is not of the expected kind, which the text names.
    Shape(String),
    Refused(CallError),
}

impl From<CallError> for Fault {
    fn from(error: CallError) -> Self {
        Self::Refused(error)
    }
}

/// The value of a parameter that was left out.
fn default(kind: Kind) -> Arg {
    match kind {
        Kind::File(_) | Kind::Path(_) | Kind::Entry(_) => Arg::Path(WorkspacePath::root()),
        Kind::Number { .. } => Arg::Number(0),
        Kind::Flag => Arg::Flag(false),
        Kind::Choice(_) => Arg::Choice(0),
        Kind::Words | Kind::Names(_) | Kind::Hosts => Arg::Words(Vec::new()),
        Kind::Text(_)
        | Kind::Glob(_)
        | Kind::Timeout(_)
        | Kind::Checksum
        | Kind::Edits
        | Kind::Paths
        | Kind::Id => Arg::Absent,
    }
}

fn one_of(kind: Kind) -> String {
    let Kind::Choice(choices) = kind else { return String::new() };
    let names: Vec<&str> = choices.iter().map(|choice| choice.name).collect();
    format!("one of {}", names.join(", "))
}

fn check_text(limit: TextLimit, text: &str, limits: &Limits) -> Result<(), CallError> {
    match limit {
        TextLimit::None => Ok(()),
        TextLimit::File => within(text.len(), limits.write_bytes),
        TextLimit::Argument if text.len() > limits.argument_bytes => Err(too_long(limits)),
        TextLimit::Pattern if text.len() > limits.argument_bytes => {
            Err(CallError::Params("the pattern is too long".into()))
        }
        TextLimit::Script => {
            within(text.len(), limits.script_bytes)?;
            match text.contains('\0') {
                true => Err(CallError::Params("the script holds a NUL".into())),
                false => Ok(()),
            }
        }
        TextLimit::Argument | TextLimit::Pattern => Ok(()),
    }
}

fn texts(list: Vec<Value>) -> Result<Vec<String>, Fault> {
    let words = list.into_iter().map(|word| match word {
        Value::String(word) => Ok(word),
        _ => Err(Fault::Shape("a list of texts".into())),
    });
    words.collect()
}

fn check_words(words: &[String], limits: &Limits) -> Result<(), CallError> {
    let is_too_long = words.len() > limits.arguments
        || words.iter().any(|word| word.len() > limits.argument_bytes)
        || words.iter().map(String::len).sum::<usize>() > limits.arguments_bytes;
    if is_too_long {
        return Err(too_long(limits));
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(CallError::Params("an argument holds a NUL".into()));
    }
    Ok(())
}

fn too_long(limits: &Limits) -> CallError {
    CallError::Arguments {
        count: limits.arguments,
        each: limits.argument_bytes,
        total: limits.arguments_bytes,
    }
}

/// SHA-256 in hexadecimal digits, as results have it.
fn is_checksum(sum: &str) -> bool {
    sum.len() == 64 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn within(size: usize, limit: u64) -> Result<(), CallError> {
    let size = size as u64;
    if size > limit { Err(CallError::Size { size, limit }) } else { Ok(()) }
}

/// A whole number, which may be written as `10.0`. The largest stands for all that are larger.
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_number()?;
    if let Some(count) = number.as_u64() {
        return Some(count);
    }
    // The cast saturates, so that a number that is too large becomes the maximum.
    number.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0).map(|float| float as u64)
}

/// The JSON of an argument; `None` if the call does not set it. The path that a tool works on and
/// the arguments of a command are always there, so that a person sees them.
pub(crate) fn canonical(param: &Param, arg: &Arg) -> Option<Value> {
    let is_left_out = param.presence == Presence::Default && param.kind != Kind::Words;
    if is_left_out && *arg == default(param.kind) {
        return None;
    }
    Some(match arg {
        Arg::Absent => return None,
        Arg::Path(path) => shown_path(path),
        Arg::Text(text) => text.as_str().into(),
        Arg::Glob(glob) => glob.as_str().into(),
        Arg::Number(number) => (*number).into(),
        Arg::Flag(flag) => (*flag).into(),
        Arg::Choice(at) => match param.kind {
            Kind::Choice(choices) => choices.get(*at).map(|choice| choice.name).into(),
            _ => return None,
        },
        Arg::Edits(edits) => edits.iter().map(edit_as_json).collect(),
        Arg::Words(words) => words.iter().map(String::as_str).collect(),
        Arg::Paths(paths) => paths.iter().map(shown_path).collect(),
    })
}

fn shown_path(path: &WorkspacePath) -> Value {
    match path.demands_directory() && !path.is_root() {
        true => format!("{path}/").into(),
        false => path.as_str().into(),
    }
}

fn edit_as_json(edit: &Edit) -> Value {
    let mut json = serde_json::json!({ "old_text": edit.old_text, "new_text": edit.new_text });
    if edit.replace_all {
        json["replace_all"] = true.into();
    }
    json
}
