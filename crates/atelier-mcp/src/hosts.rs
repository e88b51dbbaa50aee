//! The host names that requests may be addressed to.
//!
//! The owner of a web page can give its name the address of this server, and a browser then sends
//! the page's requests here (DNS rebinding). Those requests carry the page's name, so names that
//! somebody on the internet could own are refused unless they are allowed.

use axum::http::uri::Authority;

/// Names that always mean this machine.
pub(crate) const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The setting that allows more names, for messages.
const SETTING: &str = "--allowed-host or ATELIER_MCP_ALLOWED_HOSTS";

/// The host names that requests may be addressed to.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts {
    any: bool,
    /// Names in lower case without brackets, each with its port if only that port is allowed.
    names: Vec<(String, Option<u16>)>,
    services: Option<ServiceNames>,
}

impl AllowedHosts {
    /// All names. It is meant for servers that check a token.
    pub fn any() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// Only names of this machine.
    pub fn loopback() -> Self {
        Self::default().with(LOOPBACK)
    }

    /// Adds names, with or without a port. An empty text or `*` allows every name.
    pub fn with<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        for name in names.into_iter().map(str::trim) {
            self.any |= name.is_empty() || name == "*";
            self.names.push(match name.parse::<Authority>() {
                Ok(authority) => (normal(authority.host()), authority.port_u16()),
                Err(_) => (normal(name), None),
            });
        }
        self
    }

    /// Adds the names of Services, which nobody on the internet can own.
    pub fn with_services(mut self, services: ServiceNames) -> Self {
        self.services = Some(services);
        self
    }

    /// Whether a request may be addressed to this host. A refusal is logged with the setting that
    /// changes it.
    pub(crate) fn check(&self, host: &Authority) -> Result<(), String> {
        let (name, port) = (normal(host.host()), host.port_u16());
        let named = || {
            let is_asked = |only: &Option<u16>| only.is_none() || *only == port;
            self.names.iter().any(|(allowed, only)| *allowed == name && is_asked(only))
        };
        if self.any || named() || self.is_service(host.host()) {
            return Ok(());
        }
        tracing::info!(host = %host, "refused a request to this host name; {SETTING} allows it");
        Err(format!("The host name {host} is not allowed here; {SETTING} allows it"))
    }

    /// Whether the name is one of a Service.
    pub(crate) fn is_service(&self, host: &str) -> bool {
        self.services.as_ref().is_some_and(|services| services.include(&normal(host)))
    }
}

/// The form in which host names are compared.
fn normal(host: &str) -> String {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    host.strip_suffix('.').map(str::to_owned).unwrap_or(host)
}

/// The names that a Service has in a cluster: `NAME`, `NAME.NAMESPACE`, `NAME.NAMESPACE.svc` and
/// `NAME.NAMESPACE.svc.DOMAIN`. A name without dots is also that of a container in Compose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceNames {
    /// The namespace of this pod, in which the Services that lead to it are. `NAME.NAMESPACE` looks
    /// like a public name, so it is accepted for this namespace only.
    namespace: Option<String>,
    domain: String,
}

impl ServiceNames {
    /// Reads the namespace and the domain of the cluster from the `resolv.conf` of a pod, which has
    /// the line `search NAMESPACE.svc.DOMAIN svc.DOMAIN DOMAIN`.
    pub fn from_resolv_conf(text: &str) -> Self {
        let lines = text.lines().map(str::split_whitespace);
        let searches =
            lines.filter_map(|mut words| (words.next() == Some("search")).then_some(words));
        let domains: Vec<String> = searches.flatten().map(normal).collect();
        let pod = domains.iter().find_map(|full| {
            let (namespace, domain) = full.split_once(".svc.")?;
            let kubelet_wrote_it = domains.contains(&format!("svc.{domain}"));
            kubelet_wrote_it.then(|| (namespace.to_owned(), domain.to_owned()))
        });
        match pod {
            Some((namespace, domain)) => Self { namespace: Some(namespace), domain },
            None => Self { namespace: None, domain: "cluster.local".to_owned() },
        }
    }

    fn include(&self, name: &str) -> bool {
        let is_label = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let labels: Vec<&str> = name.split('.').collect();
        if !labels.iter().all(|label| is_label(label)) {
            return false;
        }
        match labels.as_slice() {
            [_] => true,
            [_, namespace] => self.namespace.as_deref() == Some(namespace),
            [_, _, "svc"] => true,
            [_, _, "svc", domain @ ..] => domain.join(".") == self.domain,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AllowedHosts, ServiceNames};

    const POD: &str = "search team-a.svc.cluster.local svc.cluster.local cluster.local example.com\n\
                       nameserver 10.96.0.10\noptions ndots:5\n";

    fn refused<'a>(hosts: &AllowedHosts, asked: &[&'a str]) -> Vec<&'a str> {
        let is_refused = |host: &&&str| hosts.check(&host.parse().unwrap()).is_err();
        asked.iter().filter(is_refused).copied().collect()
    }

    /// MC-10
    #[test]
    fn services_of_any_namespace_are_reached_by_all_their_names() {
        let hosts = AllowedHosts::loopback().with_services(ServiceNames::from_resolv_conf(POD));
        let of_the_service = [
            "workspace",
            "workspace:80",
            "Workspace.Team-A",
            "workspace.team-a.svc",
            "workspace.team-a.svc.cluster.local",
            "workspace.team-a.svc.cluster.local.",
            "workspace.other.svc.cluster.local:8080",
            "localhost:9",
            "[::1]:9",
        ];
        assert_eq!(refused(&hosts, &of_the_service), Vec::<&str>::new());
        let of_others = [
            "evil.example",
            "workspace.dev",
            "workspace.team-a.svc.evil.example",
            "workspace.svc.cluster.local.evil.example",
            "team-a.svc.cluster.local.example.com",
            "10.1.2.3",
        ];
        assert_eq!(refused(&hosts, &of_others), of_others);
    }

    /// MC-10
    #[test]
    fn cluster_may_have_its_own_domain() {
        let conf = "search ns.svc.k8s.example.org svc.k8s.example.org k8s.example.org";
        let hosts = AllowedHosts::default().with_services(ServiceNames::from_resolv_conf(conf));
        let asked = ["workspace.ns.svc.k8s.example.org", "workspace.ns.svc.cluster.local"];
        assert_eq!(refused(&hosts, &asked), asked[1..]);
    }

    /// MC-10
    #[test]
    fn outside_a_cluster_names_with_dots_must_be_allowed() {
        let conf = "search home.example svc.example\nnameserver 1.1.1.1";
        let hosts = AllowedHosts::loopback()
            .with(["files.example:8443"])
            .with_services(ServiceNames::from_resolv_conf(conf));
        let asked = ["workspace", "files.example:8443", "files.example", "workspace.home.example"];
        assert_eq!(refused(&hosts, &asked), asked[2..]);
        assert_eq!(refused(&AllowedHosts::loopback(), &["workspace"]), ["workspace"]);
        assert_eq!(refused(&AllowedHosts::any(), &["evil.example"]), Vec::<&str>::new());
    }
}
