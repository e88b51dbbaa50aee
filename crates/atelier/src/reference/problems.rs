//! The codes of problem details, with status and meaning.

use super::markdown::{code, table};
use atelier_api::ProblemCode;
use atelier_core::{FailureCode, TaskFailureCode};

pub(super) fn document() -> String {
    let row = |problem: &ProblemCode| {
        [code(problem.as_str()), problem.status().to_string(), problem.meaning()]
    };
    let failures: Vec<String> =
        FailureCode::KNOWN.iter().filter_map(FailureCode::known).map(code).collect();
    let tasks: Vec<String> =
        TaskFailureCode::KNOWN.iter().filter_map(TaskFailureCode::known).map(code).collect();
    format!(
        "# Problems\n\n\
         Every answer that is not a success is `application/problem+json` (RFC 9457): `type`, \
         `title`, `status`,\n\
         a `detail` for people and one of these codes for programs.\n\n{}\n\
         ## Failed tool calls\n\n\
         A tool call that failed or was refused has one of these codes in `error.code`:\n{}.\n\n\
         ## Failed tasks\n\n\
         A task or plan that failed or was cancelled has one of these codes in \
         `error.code`:\n{}.\n",
        table(["code", "status", "meaning"], ProblemCode::ALL.iter().map(row)),
        failures.join(",\n"),
        tasks.join(",\n"),
    )
}
