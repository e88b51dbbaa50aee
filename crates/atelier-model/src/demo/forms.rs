//! The forms of request that the demo model knows, in three languages, each with a tested example.

use regex::Regex;
use std::sync::LazyLock;

/// One form of request. Its named groups become the arguments of the tool.
pub(super) struct Form {
    pub(super) tool: &'static str,
    /// `write_file` with `mode: append`.
    pub(super) append: bool,
    /// The script that `shell` runs, if that is the tool.
    pub(super) script: Option<Script>,
    pub(super) regex: Regex,
}

/// A script that the demo model knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Runs the project's tests, whatever they are.
    Tests,
    /// Replaces a text in all files. The change is landed afterwards.
    ReplaceEverywhere,
}

/// A quoted text, in any kind of quotation marks, which is taken literally.
pub(super) const QUOTED: &str = r#""[^"]+"|`[^`]+`|«[^»]+»|「[^」]+」|“[^”]+”"#;

/// Polite and connecting words before the request itself.
const POLITE: &str = concat!(
    r"(?:(?:\d+[.)]|[-*]|hi|hello|hey|please|now|first|also|then|and|can you|could you|would you|let's",
    r"|пожалуйста|привет|сначала|теперь|затем|потом|можешь|まず|次に|それから|では|こんにちは)[,!.、。]?\s*)*",
);

/// Tool, pattern, example. Stricter forms come first: `create folder x` would also match a file
/// named `folder`.
#[rustfmt::skip]
const TABLE: &[(&str, &str, &str)] = &[
    // English
    ("replace_everywhere", r"(?:rename|replace|change) (?<old>ARG) (?:to|with|by|into) (?<new>ARG) (?:in all(?: the| of the)? files|in every file|everywhere)", "rename foo to bar in all files"),
    ("tests", r"(?:run|execute)(?: all)?(?: the| my| our)?(?: unit)? tests[.!]?\s*$", "run the tests"),
    ("create_directory", r"(?:create|make)(?: a| the)?(?: new)? (?:directory|folder) (?<path>ARG)", "make a folder docs"),
    ("edit_file", r"(?:replace|change) (?<old>ARG) (?:with|to|by) (?<new>ARG) in (?<path>ARG)", "replace `foo` with `bar` in src/a.rs"),
    ("write_file", r"(?:write|save|put) (?<content>QUOTED) (?:to|into|in)(?: the)?(?: file)? (?<path>ARG)", "write \"hello\" to notes.txt"),
    ("write_file", r"(?:write|create|save|make)(?: a| the)?(?: new)?(?: file)?(?: called| named)? (?<path>PATH)(?::| (?:with|containing|saying)(?: the)?(?: contents?| text)?:?)\s*(?<content>(?s:.+))", "write notes.txt: hello"),
    ("write_file", r"(?:write|save|put)(?: the)?(?: text| words?)? (?<content>[^\n:]+?) (?:to|into|in)(?: the| a)?(?: file)? (?<path>FILE)$", "write hello world into notes.txt"),
    ("append", r"(?:append|add) (?<content>QUOTED) to(?: the)?(?: file)? (?<path>ARG)", "add \"more\" to notes.txt"),
    ("append", r"(?:append|add)(?: to)?(?: the)?(?: file)? (?<path>PATH):\s*(?<content>(?s:.+))", "append to notes.txt: more"),
    ("append", r"(?:append|add)(?: the)?(?: text| line| words?)? (?<content>[^\n:]+?) to(?: the)?(?: end of)?(?: the)?(?: file)? (?<path>FILE)$", "append one more line to notes.txt"),
    ("execute_command", r"(?:run|execute|exec)(?: the)?(?: command)?:? (?<command>QUOTED|[^\n]+)", "run git status"),
    ("search_files", r"(?:find|search for|look for)(?: all)?(?: the)? files(?: named| matching| called| like)? (?<pattern>ARG)", "find files *.rs"),
    ("grep", r"(?:search|look|grep)(?: the (?:code|files|project))?(?: for)? (?<pattern>ARG)(?: in (?:the )?(?<path>ARG))?", "search for main in src"),
    ("grep", r"find(?: the)?(?: text| word)? (?<pattern>ARG)(?: in (?:the )?(?<path>ARG))?", "find \"fn main\""),
    ("list_directory", r"(?:list|ls|show)(?: me)?(?: all)?(?: the)? (?:files|directory|folder|contents)(?: in| of)?(?: the)?(?: directory| folder)?(?: (?<path>ARG))?", "list files in src"),
    ("list_directory", r"(?:list|ls)(?: (?<path>ARG))?", "list src"),
    ("get_file_info", r"(?:info|information|details)(?: about| on| of)?(?: the)?(?: file)? (?<path>ARG)", "info about Cargo.toml"),
    ("move_file", r"(?:move|rename)(?: the)?(?: file)? (?<source>ARG) (?:to|as|into) (?<destination>ARG)", "rename a.txt to b.txt"),
    ("delete_file", r"(?:delete|remove)(?: the)?(?: file)? (?<path>ARG)", "delete old.txt"),
    ("edit_file", r"in(?: the)?(?: file)? (?<path>PATH),? (?:replace|change) (?<old>ARG) (?:with|to|by) (?<new>ARG)", "in src/a.rs replace foo with bar"),
    ("read_file", r"what(?: is|'s| are| does)?(?: the)?(?: in(?:side)?| contents? of)(?: the)?(?: file)? (?<path>FILE)", "what is in README.md?"),
    ("read_file", r"(?:read|show|open|cat|print|display)(?: me)?(?: the)?(?: (?:files?|contents? of))?(?: the)? (?<path>ARG)", "read README.md"),
    // Russian
    ("replace_everywhere", r"(?:переименуй|замени)(?:те)? (?<old>ARG) (?:в|на) (?<new>ARG) (?:во всех файлах|везде)", "переименуй foo в bar во всех файлах"),
    ("tests", r"(?:запусти|выполни|прогони)(?:те)?(?: все)? тесты[.!]?\s*$", "запусти тесты"),
    ("create_directory", r"(?:создай|сделай)(?:те)? (?:папку|каталог|директорию) (?<path>ARG)", "создай папку docs"),
    ("edit_file", r"замени(?:те)? (?<old>ARG) на (?<new>ARG) в (?:файле )?(?<path>ARG)", "замени `foo` на `bar` в src/a.rs"),
    ("write_file", r"(?:запиши|напиши|сохрани)(?:те)? (?<content>QUOTED) в (?:файл )?(?<path>ARG)", "запиши «привет» в notes.txt"),
    ("write_file", r"(?:запиши|напиши|создай|сохрани)(?:те)?(?: в)?(?: файл)? (?<path>PATH):\s*(?<content>(?s:.+))", "запиши в notes.txt: привет"),
    ("write_file", r"(?:создай|сделай|напиши)(?:те)? файл (?<path>PATH) с (?:текстом|содержимым|содержанием):?\s*(?<content>(?s:.+))", "создай файл notes.txt с текстом привет"),
    ("append", r"(?:добавь|допиши)(?:те)?(?: в)?(?: файл)? (?<path>PATH):\s*(?<content>(?s:.+))", "допиши в notes.txt: ещё"),
    ("execute_command", r"(?:запусти|выполни)(?:те)?(?: команду)?:? (?<command>QUOTED|[^\n]+)", "выполни git status"),
    ("search_files", r"(?:найди|поищи)(?:те)?(?: все)? файлы (?<pattern>ARG)", "найди файлы *.rs"),
    ("grep", r"(?:найди|поищи|ищи)(?:те)?(?: текст| слово| строку)? (?<pattern>ARG)(?: в (?:папке |файле )?(?<path>ARG))?", "найди main в src"),
    ("list_directory", r"(?:покажи|перечисли|выведи)(?:те)?(?: список)? (?:файлы|файлов|папку|каталог|содержимое (?:папки|каталога))(?: в)?(?: папке| каталоге)?(?: (?<path>ARG))?", "покажи файлы в src"),
    ("move_file", r"(?:перемести|переименуй)(?:те)?(?: файл)? (?<source>ARG) в (?<destination>ARG)", "переименуй a.txt в b.txt"),
    ("delete_file", r"удали(?:те)?(?: файл)? (?<path>ARG)", "удали old.txt"),
    ("read_file", r"что(?: написано| находится)? в файле (?<path>ARG)", "что в файле README.md?"),
    ("read_file", r"(?:прочитай|прочти|покажи|открой)(?:те)?(?: мне)?(?: содержимое)?(?: файла?)? (?<path>ARG)", "прочитай README.md"),
    // Japanese: the object comes before the verb.
    ("replace_everywhere", r"(?:すべて|全て)のファイルで\s*(?<old>JA)\s*を\s*(?<new>JA)\s*に(?:置き換え|置換|変え|変更|リネーム)", "すべてのファイルで「foo」を「bar」に置き換えて"),
    ("tests", r"(?:すべての|全ての)?テストを(?:実行|走らせ)", "テストを実行して"),
    ("create_directory", r"(?<path>JA)\s*(?:という)?(?:フォルダ|ディレクトリ)ー?を(?:作|作成)", "docsフォルダを作って"),
    ("edit_file", r"(?<path>JA)\s*の\s*(?<old>JA)\s*を\s*(?<new>JA)\s*に(?:置き換え|置換|変え|変更)", "src/a.rsの「foo」を「bar」に置き換えて"),
    ("append", r"(?<path>JA)\s*に\s*(?<content>「[^」]+」)\s*(?:と|を)?(?:追記|追加)", "notes.txtに「more」を追記して"),
    ("write_file", r"(?<path>JA)\s*に\s*(?<content>「[^」]+」)\s*(?:と|を)?(?:書|保存)", "notes.txtに「こんにちは」と書いて"),
    ("write_file", r"(?<content>「[^」]+」)\s*(?:と|を)\s*(?<path>JA)\s*に(?:書|保存)", "「こんにちは」とnotes.txtに書いて"),
    ("execute_command", r"(?<command>QUOTED|[^\n「」、。]+?)\s*を?(?:実行|走らせ)", "git status を実行して"),
    ("grep", r"(?:(?<path>JA)\s*(?:から|の中で|で)\s*)?(?<pattern>JA)\s*を(?:検索|探)", "srcで「main」を検索して"),
    ("list_directory", r"(?:(?<path>JA)\s*の)?\s*(?:ファイル)?(?:の)?一覧", "srcのファイル一覧を見せて"),
    ("move_file", r"(?<source>JA)\s*を\s*(?<destination>JA)\s*に(?:移動|リネーム)", "a.txtをb.txtに移動して"),
    ("delete_file", r"(?<path>JA)\s*を(?:削除|消)", "old.txtを削除して"),
    ("read_file", r"(?<path>JA)\s*の(?:内容|中身)(?:を|は)?(?:見せ|表示|教え|読|何)", "README.mdの内容を教えて"),
    ("read_file", r"(?<path>JA)\s*を(?:読|表示|開|見せ)", "README.mdを読んで"),
];

/// A bare command line. It must be the whole message, because inside a sentence these are words.
pub(super) static COMMAND: LazyLock<Form> = LazyLock::new(|| {
    let programs =
        "git|npm|pnpm|yarn|pip|cargo|node|python3?|rm|sudo|curl|wget|echo|pwd|whoami|uname|mkdir";
    Form {
        tool: "execute_command",
        append: false,
        script: None,
        regex: compiled(&format!(r"^\s*(?:\$ )?(?<command>(?:{programs})(?: [^\n]+)?)\s*$")),
    }
});

pub(super) fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern)
        .unwrap_or_else(|invalid| unreachable!("the built-in patterns are valid: {invalid}"))
}

pub(super) static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    let form = |&(tool, pattern, _example): &(&'static str, &str, &str)| {
        let pattern = pattern
            .replace("QUOTED", QUOTED)
            .replace("ARG", &format!(r"{QUOTED}|[^\s,;]+"))
            .replace("FILE", &format!(r"{QUOTED}|[^\s,;:?]*\w\.\w+"))
            .replace("PATH", &format!(r"{QUOTED}|[^\s:,;]+"))
            .replace("JA", r"「[^」]+」|`[^`]+`|[^\s、。「」をにの]+?");
        let regex = compiled(&format!(r"(?i)^\s*{POLITE}(?:{pattern})"));
        let (tool, append, script) = match tool {
            "append" => ("write_file", true, None),
            "tests" => ("shell", false, Some(Script::Tests)),
            "replace_everywhere" => ("shell", false, Some(Script::ReplaceEverywhere)),
            tool => (tool, false, None),
        };
        Form { tool, append, script, regex }
    };
    TABLE.iter().map(form).collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_matches_its_own_form_first() {
        for (at, (tool, _, example)) in TABLE.iter().enumerate() {
            let first = FORMS.iter().position(|form| form.regex.is_match(example));
            assert_eq!(first, Some(at), "{tool}: {example}");
        }
    }
}
