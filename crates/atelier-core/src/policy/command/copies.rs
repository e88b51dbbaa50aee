//! Rates the files that a command creates without naming them: copies in a folder, and backups.

use super::Judge;
use crate::{path::normalise, policy::files::Access};

impl Judge<'_, '_> {
    /// Rates the files that are created if the destination of `cp` or `mv` is a directory: they
    /// keep the names of their sources.
    pub(super) fn rate_copies_into<'a>(
        &mut self,
        dest: &str,
        sources: impl Iterator<Item = &'a str>,
    ) {
        for source in sources.filter(|source| *source != dest) {
            self.rate_paths_inside(source);
            let Some(name) = source.trim_end_matches('/').rsplit('/').next() else { continue };
            if !matches!(name, "" | "." | "..") {
                let landed = format!("{dest}/{name}");
                // This comes before `path`, so that the reason says that it depends on the
                // destination.
                let normal = normalise(&landed, self.cwd.relative(), self.roots).ok();
                if let Some(class) =
                    normal.and_then(|it| self.files.class(&it.relative, Access::Write))
                {
                    self.raise_coded(class.verdict, class.code(), || {
                        let reason = format!("{landed}, if {dest} is a folder: {}", class.reason);
                        (format!("file.{}", class.id).into(), reason.into())
                    });
                }
                self.path(&landed, Access::Write);
            }
        }
    }

    /// Rates a source that may contain files which are recognised only by their path. For example,
    /// `.config/gh` holds secrets, and nothing would recognise them in a copy of `.config` under
    /// another name.
    fn rate_paths_inside(&mut self, source: &str) {
        let Ok(normal) = normalise(source, self.cwd.relative(), self.roots) else { return };
        if let Some(class) = self.files.leading_to(&normal.relative) {
            self.raise_coded(class.verdict, class.code(), || {
                let reason = format!(
                    "{source} may hold files that are asked about because of where they lie."
                );
                (format!("file.{}", class.id).into(), reason.into())
            });
        }
    }

    /// Rates the backups that `-i.bak` and `-S .bak` write next to each file. sed replaces `*` by
    /// the name of the file.
    pub(super) fn suffixed<'a>(&mut self, suffix: &str, operands: impl Iterator<Item = &'a str>) {
        let named = |base: &str| {
            if suffix.contains('*') { suffix.replace('*', base) } else { format!("{base}{suffix}") }
        };
        // There may also be products with this suffix whose names are not in the command line.
        let product = named("x");
        if let Some(class) = self.files.class(&product, Access::Write) {
            self.raise_coded(class.verdict, class.code(), || {
                (format!("file.{}", class.id).into(), format!("{product}: {}", class.reason).into())
            });
        }
        for operand in operands.filter(|operand| !operand.ends_with('/')) {
            let (dir, base) =
                operand.rsplit_once('/').map_or(("", operand), |(dir, base)| (dir, base));
            if matches!(base, "" | "." | ".." | "-") {
                continue;
            }
            let backup =
                if operand.contains('/') { format!("{dir}/{}", named(base)) } else { named(base) };
            self.path(&backup, Access::Write);
        }
    }
}
