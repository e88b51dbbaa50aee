//! The codes of problem details, with status and meaning.

use super::markdown::{code, table};
use atelier_api::ProblemCode;

pub(super) fn document() -> String {
    let row =
        |problem: &ProblemCode| [code(problem.as_str()), problem.status().to_string(), problem.meaning()];
    format!(
        "# Problems\n\n\
         Every answer that is not a success is `application/problem+json` (RFC 9457): `type`, `title`, `status`,\n\
         a `detail` for people and one of these codes for programs.\n\n{}",
        table(["code", "status", "meaning"], ProblemCode::ALL.iter().map(row)),
    )
}
