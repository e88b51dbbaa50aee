//! Runs a tool by its name.

use atelier_executor::Cancel;

use crate::args::Args;
use crate::reply::Answer;
use crate::space::Space;
use crate::{extra, list, read, search, write};

/// Whether a tool walks a tree, which may take long and can be stopped.
pub(crate) fn walks(name: &str) -> bool {
    matches!(name, "search_files" | "grep" | "directory_tree")
}

/// Runs a tool of the catalogue; `None` if the name is unknown. Blocks.
pub(crate) fn run(space: &Space, name: &str, args: Args, cancel: &Cancel) -> Option<Answer> {
    Some(match name {
        "read_file" => read::read_file(space, args),
        "write_file" => write::write_file(space, args),
        "list_directory" => list::list_directory(space, args),
        "create_directory" => write::create_directory(space, args),
        "get_file_info" => list::get_file_info(space, args),
        "search_files" => search::search_files(space, args, cancel),
        "edit_file" => extra::edit_file(space, args),
        "append_file" => extra::append_file(space, args),
        "move_file" => extra::move_file(space, args),
        "delete_file" => extra::delete_file(space, args),
        "read_multiple_files" => extra::read_multiple_files(space, args),
        "grep" => extra::grep(space, args, cancel),
        "directory_tree" => extra::directory_tree(space, args, cancel),
        _ => return None,
    })
}
