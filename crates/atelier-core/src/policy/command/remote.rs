//! Rates the addresses of git repositories and packages.

use super::Judge;
use crate::{
    path::normalise,
    policy::{files::Access, verdict::Verdict},
};

impl Judge<'_, '_> {
    /// Rates a repository that is given by name, path or address. `sends` says whether data is sent
    /// there.
    pub(super) fn remote(&mut self, text: &str, sends: bool) {
        let head = text.split('/').next().unwrap_or(text);
        if head.contains("::") {
            return self.deny("transport", "The address names a helper program for git to run.");
        }
        // As written: another spelling of the same place is asked about once more.
        self.connects_to(text);
        if let Some((scheme, rest)) = text.split_once("://") {
            return self.address(scheme, rest, sends);
        }
        if let Some((host, _)) = head.split_once(':') {
            return self.host(host, sends);
        }
        let access = if sends { Access::Write } else { Access::Read };
        if text.contains('/') || text.starts_with('.') || text.starts_with('~') {
            self.path(text, access);
        } else if let Ok(normal) = normalise(text, self.cwd.relative(), self.roots) {
            // git prefers a directory of this name to a remote of this name.
            self.note(text, normal.into_path(), Access::Read);
        }
    }

    fn address(&mut self, scheme: &str, rest: &str, sends: bool) {
        match scheme.to_ascii_lowercase().as_str() {
            "https" | "http" | "git" | "ssh" | "git+ssh" | "ssh+git" => {}
            "file" => {
                return self.deny("transport", "The address reaches files outside the workspace.");
            }
            _ => {
                return self
                    .deny("transport", "The address names a helper program for git to run.");
            }
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
        if user.contains(':') || (http && !user.is_empty()) {
            self.high("credentials", "The address carries credentials.");
        }
        self.host(host, sends);
    }

    fn host(&mut self, host: &str, sends: bool) {
        let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
        if host.starts_with('-') || name.starts_with('-') {
            return self.deny("transport", "The host's name would be read as an option of ssh.");
        }
        if sends {
            self.high("sends", "It sends the project's content to an address given in the call.");
        }
        if is_internal(name) {
            self.high("internal", "The address is inside the user's own network.");
        }
    }

    /// Rates a file that names packages. It stands for the addresses in it, so a permission holds
    /// for this file only, and a person is asked about a file that is changed without a question.
    pub(super) fn package_list(&mut self, text: &str) {
        self.connects_to(text);
        self.path(text, Access::Read);
        let Ok(normal) = normalise(text, self.cwd.relative(), self.roots) else { return };
        let class = self.files.class(&normal.relative, Access::Write);
        if class.is_none_or(|class| class.verdict < Verdict::High) {
            self.high(
                "list",
                "It loads packages from addresses in a file that can be changed without approval.",
            );
        }
    }

    /// Rates a package that is given by name and version, by path, or by address.
    pub(super) fn package(&mut self, text: &str) {
        let spec = text.trim();
        // The source follows the `@` in `name@source` and `name @ source`. A leading `@` is part of
        // a scope.
        let source = spec
            .get(1..)
            .and_then(|tail| tail.split_once('@'))
            .map_or(spec, |(_, source)| source.trim());
        for place in [spec, source] {
            if let Some(path) = ["file:", "link:", "portal:", "workspace:", "patch:"]
                .iter()
                .find_map(|prefix| place.strip_prefix(prefix))
            {
                let path = path.strip_prefix("//").unwrap_or(path);
                self.argument(path);
                continue;
            }
            let fetched = place.contains("://")
                || ["git+", "github:", "gitlab:", "bitbucket:", "gist:", "git@", "hg+", "svn+", "bzr+"]
                    .iter()
                    .any(|prefix| place.starts_with(prefix))
                // `owner/repository` is short for GitHub.
                || (place.contains('/') && !place.starts_with(['@', '.', '/', '~']) && place == spec
                    && place.matches('/').count() == 1 && !place.contains('='));
            if fetched {
                self.connects_to(place);
                self.high("package", "The package does not come from the registry.");
                if place.contains("ext::") || place.contains("file://") {
                    self.deny(
                        "transport",
                        "The address reaches files or programs outside the workspace.",
                    );
                }
            } else if place.starts_with(['.', '/', '~']) {
                self.path(place, Access::Read);
            } else {
                self.argument(place);
            }
        }
        if spec.starts_with('@') && !spec.contains('/') {
            self.deny("response-file", "It takes its arguments from a file.");
        }
    }
}

/// Whether a host is in the user's own network.
fn is_internal(host: &str) -> bool {
    let host = host.trim_start_matches('[').to_ascii_lowercase();
    // A host with a port has one colon; an IPv6 address has more.
    if host.matches(':').count() > 1 {
        return ["::", "0:", "fe80:", "fc", "fd"].iter().any(|start| host.starts_with(start));
    }
    let name = host.split(':').next().unwrap_or(&host).trim_end_matches('.');
    let private_172 =
        name.strip_prefix("172.").and_then(|rest| rest.split('.').next()?.parse::<u8>().ok());
    let shared_100 =
        name.strip_prefix("100.").and_then(|rest| rest.split('.').next()?.parse::<u8>().ok());
    // An IPv4 address in octal or hexadecimal, or with fewer than four parts, is meant to be
    // misread: 0x7f.1 is 127.0.0.1.
    let numeric =
        |part: &str| part.strip_prefix("0x").unwrap_or(part).bytes().all(|b| b.is_ascii_hexdigit());
    let disguised = name.starts_with(|c: char| c.is_ascii_digit())
        && name.split('.').all(numeric)
        && (name.split('.').any(|part| part.len() > 1 && part.starts_with('0'))
            || name.split('.').count() < 4);
    name == "localhost"
        || [".localhost", ".local", ".internal", ".lan", ".home", ".corp"]
            .iter()
            .any(|end| name.ends_with(end))
        || ["127.", "10.", "192.168.", "169.254.", "0."].iter().any(|start| name.starts_with(start))
        || disguised
        || shared_100.is_some_and(|second| (64..128).contains(&second))
        || private_172.is_some_and(|second| (16..32).contains(&second))
}

#[cfg(test)]
mod tests {
    use super::is_internal;

    #[test]
    fn hosts_of_the_users_own_network() {
        let internal = "localhost LOCALHOST:8080 localhost. x.local git.internal:443 127.0.0.1 \
            10.1.2.3:80 \
            192.168.0.1 169.254.169.254 172.16.0.1 172.31.0.1 100.64.0.1 100.127.0.1 0.0.0.0 \
            2130706433 0x7f000001 0177.1.1.1 0x7f.1 127.1 [::1] [::ffff:127.0.0.1]:80 [fe80::1] \
            [fd12:3456::1] [fc00::1]:443 [0:0:0:0:0:0:0:1]";
        for host in internal.split(' ') {
            assert!(is_internal(host), "{host}");
        }
        let others = "example.invalid example.invalid.:443 fdroid.invalid:443 8.8.8.8 8.8.0.8 \
            172.15.0.1 \
            172.32.0.1 100.63.0.1 100.128.0.1 1.example.invalid localhost.example.invalid local \
            cafe.invalid [2001:db8::1] 3com.invalid";
        for host in others.split(' ') {
            assert!(!is_internal(host), "{host}");
        }
    }
}
