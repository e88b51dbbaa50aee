//! Which limits a machine can enforce on the commands that it runs.

use crate::json;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// What keeps a command inside its sandbox. It is part of every command's outcome, and the machine
/// reports it when it connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Isolation {
    /// Version of the kernel's Landlock interface, which limits reads to system folders and the
    /// workspace, and writes to the workspace. 0 if the kernel has no Landlock.
    pub landlock: u8,
    /// Everything outside the workspace is mounted read-only, and files can be hidden.
    pub mounts: bool,
    pub network: NetworkIsolation,
    pub processes: ProcessIsolation,
    /// How many processes a command may have; `None` if only the timeout stops a fork bomb.
    pub process_limit: Option<u32>,
    /// Namespaces are made inside a user namespace, without being root.
    pub user_namespace: bool,
}

/// What keeps a command from the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkIsolation {
    NamespaceAndSeccomp,
    Namespace,
    Seccomp,
    None,
}

/// How all processes of a command are ended together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessIsolation {
    /// The kernel kills everything in the namespace when its first process ends.
    PidNamespace,
    /// A supervising parent collects and kills the processes. A process that kills the supervisor
    /// first could escape.
    Supervisor,
    /// Only the process group is killed.
    Group,
}

impl Isolation {
    /// Whether a command that only reads can be kept from writing and from the network. LOW
    /// commands run without approval only where this holds. Landlock before version 3 allows
    /// truncating files, so it counts only together with read-only mounts.
    pub fn enforces_read_only(&self) -> bool {
        let files = self.landlock >= 3 || (self.landlock >= 1 && self.mounts);
        files && self.network != NetworkIsolation::None
    }

    /// No limits at all, as on systems other than Linux.
    pub fn none() -> Self {
        Self {
            landlock: 0,
            mounts: false,
            network: NetworkIsolation::None,
            processes: ProcessIsolation::Group,
            process_limit: None,
            user_namespace: false,
        }
    }

    /// The limits that this machine cannot enforce, one sentence for each consequence.
    pub fn missing(&self) -> Vec<&'static str> {
        let lacks = [
            (
                self.landlock == 0,
                "no Landlock: commands can read and write everything that you can",
            ),
            (!self.mounts, "no mount namespace: secret files cannot be hidden from commands"),
            (
                self.network == NetworkIsolation::None,
                "no network isolation: commands can use the network",
            ),
            (
                self.processes == ProcessIsolation::Group,
                "no process isolation: a command could leave processes behind",
            ),
            (
                self.process_limit.is_none(),
                "no process limit: a command can start any number of processes",
            ),
            (
                !self.enforces_read_only(),
                "for these reasons, every command needs your approval here",
            ),
        ];
        lacks.into_iter().filter_map(|(lacking, words)| lacking.then_some(words)).collect()
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.landlock {
            0 => write!(f, "files: not limited (no Landlock)")?,
            version => write!(f, "files: Landlock {version}")?,
        }
        let mounts = if self.mounts { " and read-only mounts" } else { "" };
        let network = match self.network {
            NetworkIsolation::NamespaceAndSeccomp => "namespace and seccomp",
            NetworkIsolation::Namespace => "namespace",
            NetworkIsolation::Seccomp => "seccomp",
            NetworkIsolation::None => "not limited",
        };
        let processes = match self.processes {
            ProcessIsolation::PidNamespace => "pid namespace",
            ProcessIsolation::Supervisor => "supervisor",
            ProcessIsolation::Group => "process group",
        };
        write!(f, "{mounts}; network: {network}; processes: {processes}")?;
        match self.process_limit {
            Some(limit) => write!(f, ", at most {limit}"),
            None => write!(f, ", not limited in number"),
        }
    }
}

/// The isolation that a machine reports when it connects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(into = "Report")]
pub struct ReportedIsolation {
    /// Whether commands that only read are kept from writing and from the network. A machine that
    /// does not say so is unsandboxed: every command is asked about.
    pub enforces_read_only: bool,
    /// The isolation in one line, for people.
    pub words: Option<String>,
    /// What the machine cannot enforce, for people.
    pub missing: Vec<String>,
    /// The mechanisms behind it; `None` if the machine does not name them in a form known here.
    pub mechanisms: Option<Isolation>,
}

impl From<&Isolation> for ReportedIsolation {
    fn from(isolation: &Isolation) -> Self {
        Self {
            enforces_read_only: isolation.enforces_read_only(),
            words: Some(isolation.to_string()),
            missing: isolation.missing().into_iter().map(str::to_owned).collect(),
            mechanisms: Some(isolation.clone()),
        }
    }
}

/// A report on the wire: one flat object. A machine of another version may leave out mechanisms, or
/// have other kinds of them.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
struct Report {
    /// Whether commands that only read are kept from writing and from the network. A machine that
    /// does not say so is unsandboxed: every command is asked about.
    enforces_read_only: bool,
    /// The isolation in one line, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<String>,
    /// What the machine cannot enforce, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
    /// Version of the kernel's Landlock interface. 0 if the kernel has no Landlock.
    #[serde(deserialize_with = "json::whole_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 255))]
    landlock: Option<u8>,
    /// Everything outside the workspace is mounted read-only, and files can be hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    mounts: Option<bool>,
    /// What keeps a command from the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(schema_with = open_enum::<NetworkIsolation>))]
    network: Option<Kind<NetworkIsolation>>,
    /// How all processes of a command are ended together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(schema_with = open_enum::<ProcessIsolation>))]
    processes: Option<Kind<ProcessIsolation>>,
    /// How many processes a command may have; null if only the timeout stops a fork bomb.
    #[serde(deserialize_with = "json::whole_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u32))]
    process_limit: Option<u32>,
    /// Namespaces are made inside a user namespace, without being root.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_namespace: Option<bool>,
}

/// A kind of mechanism, which this version may or may not know.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Kind<T> {
    Known(T),
    Other(String),
}

impl<T> Kind<T> {
    fn known(self) -> Option<T> {
        match self {
            Kind::Known(kind) => Some(kind),
            Kind::Other(_) => None,
        }
    }
}

#[cfg(feature = "openapi")]
fn open_enum<T: utoipa::PartialSchema>() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    use utoipa::openapi::schema::{SchemaType, Type};
    crate::codes::open(T::schema(), SchemaType::from_iter([Type::String, Type::Null]))
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ReportedIsolation {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        Report::schema()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ReportedIsolation {}

impl<'de> Deserialize<'de> for ReportedIsolation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json::object::<_, Report>(deserializer).map(Self::from)
    }
}

impl From<Report> for ReportedIsolation {
    fn from(report: Report) -> Self {
        let Report { enforces_read_only, words, missing, .. } = report;
        let mechanisms = || {
            Some(Isolation {
                landlock: report.landlock?,
                mounts: report.mounts?,
                network: report.network?.known()?,
                processes: report.processes?.known()?,
                process_limit: report.process_limit,
                user_namespace: report.user_namespace?,
            })
        };
        Self { enforces_read_only, words, missing, mechanisms: mechanisms() }
    }
}

impl From<ReportedIsolation> for Report {
    fn from(reported: ReportedIsolation) -> Self {
        let ReportedIsolation { enforces_read_only, words, missing, mechanisms } = reported;
        let report = Self { enforces_read_only, words, missing, ..Self::default() };
        let Some(isolation) = mechanisms else { return report };
        Self {
            landlock: Some(isolation.landlock),
            mounts: Some(isolation.mounts),
            network: Some(Kind::Known(isolation.network)),
            processes: Some(Kind::Known(isolation.processes)),
            process_limit: isolation.process_limit,
            user_namespace: Some(isolation.user_namespace),
            ..report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Isolation, NetworkIsolation, ProcessIsolation, ReportedIsolation};
    use serde_json::json;

    fn full() -> Isolation {
        Isolation {
            landlock: 6,
            mounts: true,
            network: NetworkIsolation::NamespaceAndSeccomp,
            processes: ProcessIsolation::PidNamespace,
            process_limit: Some(512),
            user_namespace: false,
        }
    }

    #[test]
    fn read_only_needs_files_and_network_to_be_limited() {
        use NetworkIsolation::{Namespace, None, Seccomp};
        for (landlock, mounts, network, enforces) in [
            (3, false, Seccomp, true),
            (6, false, Namespace, true),
            (2, true, Namespace, true),
            (1, true, Seccomp, true),
            (2, false, Seccomp, false),
            (0, true, Namespace, false),
            (6, true, None, false),
        ] {
            let isolation = Isolation { landlock, mounts, network, ..full() };
            assert_eq!(isolation.enforces_read_only(), enforces, "{isolation}");
        }
    }

    #[test]
    fn a_report_says_what_is_enforced_and_what_is_missing() {
        let report = ReportedIsolation::from(&full());
        assert!(report.enforces_read_only && report.missing.is_empty());
        let words = "files: Landlock 6 and read-only mounts; network: namespace and seccomp; \
                     processes: pid namespace, at most 512";
        assert_eq!(report.words.as_deref(), Some(words));
        let none = ReportedIsolation::from(&Isolation::none());
        assert!(!none.enforces_read_only);
        assert_eq!(none.missing.len(), 6);
        let words = "files: not limited (no Landlock); network: not limited; \
                     processes: process group, not limited in number";
        assert_eq!(none.words.as_deref(), Some(words));
        for report in [report, none] {
            let read: ReportedIsolation = serde_json::from_value(json!(report)).unwrap();
            assert_eq!(read, report);
        }
    }

    #[test]
    fn a_machine_that_says_nothing_is_unsandboxed() {
        for (body, enforces_read_only) in [
            (json!({}), false),
            (json!({"enforces_read_only": true}), true),
            (json!({"landlock": 6, "mounts": true}), false),
            (json!({"landlock": 9, "network": "a new kind", "enforces_read_only": true}), true),
        ] {
            let read: ReportedIsolation = serde_json::from_value(body).unwrap();
            assert_eq!(read, ReportedIsolation { enforces_read_only, ..Default::default() });
        }
        for wrong in [json!({"enforces_read_only": "yes"}), json!({"landlock": "6"}), json!([])] {
            let read = serde_json::from_value::<ReportedIsolation>(wrong.clone());
            assert!(read.is_err(), "{wrong}");
        }
    }
}
