//! Doc comments and definitions, read from the source of every crate.

use super::repository;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::LazyLock,
};
use syn::{Attribute, Expr, Fields, Item, Lit, Meta, Type};

/// One source file. `krate` is the crate's name as code spells it: `atelier_core`.
pub(super) struct File {
    pub(super) krate: String,
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl File {
    /// The path below `src`, without the ending.
    fn module(&self) -> String {
        let path = self.path.with_extension("").to_string_lossy().into_owned();
        path.rsplit_once("/src/").map_or(path.clone(), |(_, module)| module.to_owned())
    }
}

/// The source files of all crates that ship, without their test modules' folders.
pub(super) fn files() -> &'static [File] {
    static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
        let mut files = Vec::new();
        for folder in entries(&repository().join("crates")) {
            let krate = name(&folder).replace('-', "_");
            if !["atelier_bench", "atelier_testkit"].contains(&krate.as_str()) {
                collect(&folder.join("src"), "rs", &mut |path, text| {
                    files.push(File { krate: krate.clone(), path, text });
                });
            }
        }
        files
    });
    &FILES
}

/// Calls `found` with every file below `folder` whose name ends in `extension`, in a fixed order.
pub(super) fn collect(folder: &Path, extension: &str, found: &mut impl FnMut(PathBuf, String)) {
    for path in entries(folder) {
        if path.is_dir() {
            collect(&path, extension, found);
        } else if path.extension().is_some_and(|is| is == extension) {
            let text = std::fs::read_to_string(&path).expect("a source file");
            found(path, text);
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| !["node_modules", "target"].contains(&name(path)))
        .collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// A struct, an enum or an alias, with its documentation.
#[derive(Clone)]
pub(super) enum Definition {
    Struct(Vec<Field>),
    Enum(Vec<Variant>),
    Alias(Type),
}

#[derive(Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) docs: String,
    pub(super) ty: Type,
}

#[derive(Clone)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) docs: String,
    pub(super) fields: Vec<Field>,
}

/// The definition of a type, searched in `krate` first and then in all crates.
pub(super) fn definition(krate: &str, name: &str) -> Option<(String, Definition)> {
    definitions(krate, name).into_iter().next()
}

/// The struct of that name that has a field for every key of `value`.
pub(super) fn definition_of(
    krate: &str,
    name: &str,
    value: &serde_json::Value,
) -> Option<(String, Definition)> {
    let fits = |found: &(String, Definition)| match (&found.1, value.as_object()) {
        (Definition::Struct(fields), Some(map)) => {
            map.keys().all(|key| fields.iter().any(|field| field.name == *key))
        }
        _ => true,
    };
    definitions(krate, name).into_iter().find(fits)
}

fn definitions(krate: &str, name: &str) -> Vec<(String, Definition)> {
    let wanted = [format!("struct {name} "), format!("enum {name} "), format!("type {name} ")];
    let has = |file: &&File| wanted.iter().any(|wanted| file.text.contains(wanted.as_str()));
    let mut files: Vec<&File> = files().iter().filter(has).collect();
    // A stable sort: files of the crate first, otherwise in their order.
    files.sort_by_key(|file| file.krate != krate);
    let found = |file: &File| Some((file.krate.clone(), find(&parse(file).items, name)?));
    files.into_iter().filter_map(found).collect()
}

pub(super) fn parse(file: &File) -> syn::File {
    syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path.display()))
}

fn find(items: &[Item], name: &str) -> Option<Definition> {
    items.iter().find_map(|item| match item {
        Item::Struct(item) if item.ident == name => Some(Definition::Struct(fields(&item.fields))),
        Item::Enum(item) if item.ident == name => {
            let variant = |variant: &syn::Variant| Variant {
                name: variant.ident.to_string(),
                docs: docs(&variant.attrs),
                fields: fields(&variant.fields),
            };
            Some(Definition::Enum(item.variants.iter().map(variant).collect()))
        }
        Item::Type(item) if item.ident == name => Some(Definition::Alias((*item.ty).clone())),
        _ => None,
    })
}

fn fields(fields: &Fields) -> Vec<Field> {
    let field = |field: &syn::Field| Field {
        name: field.ident.as_ref().map(ToString::to_string).unwrap_or_default(),
        docs: docs(&field.attrs),
        ty: field.ty.clone(),
    };
    fields.iter().filter(|field| !is_skipped(&field.attrs)).map(field).collect()
}

fn is_skipped(attributes: &[Attribute]) -> bool {
    let tokens = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("serde") => list.tokens.to_string(),
        _ => String::new(),
    };
    attributes.iter().any(|attribute| tokens(attribute).split(", ").any(|word| word == "skip"))
}

/// A doc comment as one line.
pub(super) fn docs(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    attributes.iter().filter_map(line).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// A constant whose value is a number or a time.
pub(super) struct Constant {
    pub(super) krate: String,
    /// The path of the module below `src`, such as `policy/pattern`.
    pub(super) module: String,
    pub(super) name: String,
    pub(super) docs: String,
    pub(super) value: Value,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Value {
    Number(i128),
    Seconds(i128),
}

/// Every constant of the crates whose name begins with `prefix`, with its value.
pub(super) fn constants(prefix: &str) -> Vec<Constant> {
    let mut found = Vec::new();
    for file in files().iter().filter(|file| file.text.contains(&format!("const {prefix}"))) {
        let parsed = parse(file);
        let known: BTreeMap<String, &Expr> = parsed.items.iter().filter_map(constant).collect();
        for item in &parsed.items {
            if let Item::Const(item) = item
                && item.ident.to_string().starts_with(prefix)
                && let Some(value) = evaluate(&item.expr, &known)
            {
                found.push(Constant {
                    krate: file.krate.clone(),
                    module: file.module(),
                    name: item.ident.to_string(),
                    docs: docs(&item.attrs),
                    value,
                });
            }
        }
    }
    found
}

fn constant(item: &Item) -> Option<(String, &Expr)> {
    match item {
        Item::Const(item) => Some((item.ident.to_string(), &item.expr)),
        _ => None,
    }
}

/// The value of a constant's expression: numbers, `*`, `+`, `-`, `<<`, times and other constants.
fn evaluate(expression: &Expr, known: &BTreeMap<String, &Expr>) -> Option<Value> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Some(Value::Number(number.base10_parse().ok()?)),
            _ => None,
        },
        Expr::Paren(inner) => evaluate(&inner.expr, known),
        Expr::Cast(inner) => evaluate(&inner.expr, known),
        Expr::Path(path) => evaluate(known.get(&path.path.get_ident()?.to_string())?, known),
        Expr::Binary(binary) => {
            let number = |side: &Expr| match evaluate(side, known)? {
                Value::Number(number) => Some(number),
                Value::Seconds(_) => None,
            };
            let (left, right) = (number(&binary.left)?, number(&binary.right)?);
            Some(Value::Number(match binary.op {
                syn::BinOp::Mul(_) => left * right,
                syn::BinOp::Add(_) => left + right,
                syn::BinOp::Sub(_) => left - right,
                syn::BinOp::Shl(_) => left << right,
                _ => return None,
            }))
        }
        Expr::Call(call) => {
            let Expr::Path(function) = &*call.func else { return None };
            let Value::Number(number) = evaluate(call.args.first()?, known)? else { return None };
            let seconds = match function.path.segments.last()?.ident.to_string().as_str() {
                "from_secs" | "seconds" => 1,
                "minutes" => 60,
                "hours" => 3600,
                "days" => 24 * 3600,
                _ => return None,
            };
            Some(Value::Seconds(number * seconds))
        }
        _ => None,
    }
}
