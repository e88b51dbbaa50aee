//! Digests of calls. A digest covers everything that a call would act with, so it identifies
//! exactly what was approved.

use crate::{
    TokenId,
    gate::CallPreview,
    policy::call::ToolCall,
    tools::{Kind, Param, Presence, Surface, parse::Arg},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr};

/// SHA-256 of a call in its canonical form. Two calls that differ in anything have different
/// digests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(try_from = "String", into = "String")]
pub struct CallDigest([u8; 32]);

impl CallDigest {
    pub fn of(call: &ToolCall) -> Self {
        let mut form = CanonicalForm(Sha256::new());
        // The digest begins with the name of its format, so that no other kind of digest is equal
        // to it.
        form.text("atelier call 1").text(call.name());
        let args = call.args();
        for (param, arg) in call.tool.params.iter().zip(args.iter()) {
            if param.is_on(Surface::Gate) {
                form.argument(param, arg);
            }
        }
        Self(form.0.finalize().into())
    }

    /// The digest of a call that a program may have asked for. Each program works in a layer of its
    /// own, so the digest of a call that works in a layer covers the program too. A machine of an
    /// older version does not know of such layers: it computes another digest, and refuses the
    /// call.
    pub fn asked_by(call: &ToolCall, program: Option<TokenId>) -> Self {
        let digest = Self::of(call);
        let Some(program) = program.filter(|_| call.tool.is_layered()) else {
            return digest;
        };
        let mut form = CanonicalForm(Sha256::new());
        form.text("atelier call of a program 1").text(&digest.to_string());
        form.text(&program.to_string());
        Self(form.0.finalize().into())
    }
}

/// SHA-256 of what a person was shown before they approved a call: the call, the checksum of what
/// it was shown against, and every byte of the preview. The machine that runs the call computes it
/// again from its own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(transparent)]
pub struct PreviewDigest(CallDigest);

impl PreviewDigest {
    pub fn of(call: CallDigest, preview: &CallPreview) -> Self {
        let mut form = CanonicalForm(Sha256::new());
        form.text("atelier preview 1").text(&call.to_string());
        form.maybe(preview.base_checksum.as_deref()).text(&preview.diff);
        Self(CallDigest(form.0.finalize().into()))
    }
}

/// The length comes before the content, so that two different sequences never give the same bytes.
struct CanonicalForm(Sha256);

impl CanonicalForm {
    fn argument(&mut self, param: &Param, arg: &Arg) {
        match (param.kind, arg) {
            (Kind::Entry(_), Arg::Path(path)) => {
                self.text(path.as_str()).flag(path.demands_directory())
            }
            (_, Arg::Path(path)) => self.text(path.as_str()),
            // An argument that a call may leave out is preceded by whether it is there.
            (_, Arg::Text(text)) if param.presence == Presence::Optional => self.maybe(Some(text)),
            (_, Arg::Text(text)) => self.text(text),
            (_, Arg::Glob(glob)) if param.presence == Presence::Optional => {
                self.maybe(Some(glob.as_str()))
            }
            (_, Arg::Glob(glob)) => self.text(glob.as_str()),
            (_, Arg::Number(number)) => self.number(Some(*number)),
            (_, Arg::Flag(flag)) if param.presence == Presence::Optional => {
                self.flag(true).flag(*flag)
            }
            (_, Arg::Flag(flag)) => self.flag(*flag),
            (_, Arg::Choice(at)) => self.number(Some(*at as u64)),
            (_, Arg::Edits(edits)) => {
                self.number(Some(edits.len() as u64));
                edits.iter().fold(self, |form, edit| {
                    form.text(&edit.old_text).text(&edit.new_text).flag(edit.replace_all)
                })
            }
            (_, Arg::Words(words)) => {
                self.number(Some(words.len() as u64));
                words.iter().fold(self, |form, word| form.text(word))
            }
            (_, Arg::Paths(paths)) => {
                self.number(Some(paths.len() as u64));
                paths.iter().fold(self, |form, path| form.text(path.as_str()))
            }
            (Kind::Number { .. } | Kind::Timeout(_), Arg::Absent) => self.number(None),
            (_, Arg::Absent) => self.maybe(None),
        };
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.update((text.len() as u64).to_be_bytes());
        self.0.update(text.as_bytes());
        self
    }

    fn maybe(&mut self, text: Option<&str>) -> &mut Self {
        self.flag(text.is_some());
        match text {
            Some(text) => self.text(text),
            None => self,
        }
    }

    fn number(&mut self, number: Option<u64>) -> &mut Self {
        self.flag(number.is_some());
        self.0.update(number.unwrap_or(0).to_be_bytes());
        self
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.0.update([u8::from(flag)]);
        self
    }
}

impl fmt::Display for CallDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CallDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallDigest({self})")
    }
}

/// The error for a text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for CallDigest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let mut digest = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidDigest);
        }
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| InvalidDigest)?;
        }
        Ok(Self(digest))
    }
}

impl TryFrom<String> for CallDigest {
    type Error = InvalidDigest;
    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<CallDigest> for String {
    fn from(digest: CallDigest) -> String {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{path::Roots, policy::limits::Limits};
    use serde_json::{Value, json};
    use std::collections::HashSet;

    fn digest(name: &str, params: Value) -> CallDigest {
        CallDigest::of(
            &ToolCall::parse(name, params, &Roots::relative_only(), &Limits::default()).unwrap(),
        )
    }

    #[test]
    fn the_same_call_however_written_has_one_digest() {
        let plain = digest("write_file", json!({"path": "a/b", "content": "x"}));
        assert_eq!(
            plain,
            digest("tool_write_file", json!({"content": "x", "path": "./a//b", "mode": "write"}))
        );
        assert_eq!(plain.to_string().parse(), Ok(plain));
        assert_eq!("xyz".parse::<CallDigest>(), Err(InvalidDigest));
    }

    #[test]
    fn a_preview_is_bound_to_its_call_its_base_and_its_text() {
        let call = digest("write_file", json!({"path": "a", "content": "x"}));
        let other = digest("write_file", json!({"path": "a", "content": "y"}));
        let preview = |base: Option<&str>, diff: &str| CallPreview {
            base_checksum: base.map(str::to_owned),
            diff: diff.to_owned(),
        };
        let digests: HashSet<PreviewDigest> = [
            (call, preview(None, "+x")),
            (call, preview(Some(""), "+x")),
            (call, preview(Some("c"), "+x")),
            (call, preview(None, "+y")),
            (other, preview(None, "+x")),
        ]
        .iter()
        .map(|(call, preview)| PreviewDigest::of(*call, preview))
        .collect();
        assert_eq!(digests.len(), 5);
        let one = PreviewDigest::of(call, &preview(None, "+x"));
        assert_eq!(serde_json::from_value::<PreviewDigest>(json!(one)).ok(), Some(one));
    }

    #[test]
    fn whatever_differs_shows() {
        let calls = [
            ("execute_command", json!({"command": "git", "args": ["add", "a b"]})),
            ("execute_command", json!({"command": "git", "args": ["add", "a", "b"]})),
            ("execute_command", json!({"command": "git", "args": ["adda", "b"]})),
            ("execute_command", json!({"command": "git", "args": ["add", "a b"], "cwd": "src"})),
            ("execute_command", json!({"command": "git", "args": ["add", "a b"], "timeout": 9})),
            ("execute_command", json!({"command": "gitadd", "args": ["a b"]})),
            ("write_file", json!({"path": "a", "content": "bc"})),
            ("write_file", json!({"path": "ab", "content": "c"})),
            ("write_file", json!({"path": "a", "content": "bc", "mode": "append"})),
            ("write_file", json!({"path": "a", "content": "bc", "create_dirs": true})),
            ("read_file", json!({"path": "a"})),
            ("read_file", json!({"path": "a", "head": 0})),
            ("delete_file", json!({"path": "a"})),
            ("get_file_info", json!({"path": "a"})),
            ("move_file", json!({"source": "a", "destination": "b"})),
            ("move_file", json!({"source": "b", "destination": "a"})),
        ];
        let digests: HashSet<_> =
            calls.iter().map(|(name, params)| digest(name, params.clone())).collect();
        assert_eq!(digests.len(), calls.len());
    }
}
