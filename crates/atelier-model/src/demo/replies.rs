//! The texts of the demo model, in the language of the request.

use crate::CallResult;
use serde_json::Value;

/// How many characters of a result are quoted; the console shows the rest.
const QUOTE: usize = 4000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    English,
    Russian,
    Japanese,
}

impl Language {
    pub(super) fn of(message: &str) -> Self {
        let has =
            |range: std::ops::RangeInclusive<char>| message.chars().any(|c| range.contains(&c));
        match () {
            () if has('\u{3040}'..='\u{30ff}') => Self::Japanese,
            () if has('\u{0400}'..='\u{04ff}') => Self::Russian,
            () => Self::English,
        }
    }

    pub(super) fn introduction(self) -> &'static str {
        match self {
            Self::English => "(This is Atelier's built-in demo model, not an AI.)",
            Self::Russian => "(Это встроенная демо-модель Atelier, а не ИИ.)",
            Self::Japanese => "（Atelier 内蔵のデモモデルです。AI ではありません。）",
        }
    }

    /// Why the demo model answers instead of the requested model.
    pub(super) fn instead_of(self, model: &str, provider: &str, remedy: &str) -> String {
        match self {
            Self::English => format!(
                "(This is Atelier's built-in demo model, not an AI. It stands in for {model}: \
                 there is no key for provider {provider}; {remedy} to use it.)"
            ),
            Self::Russian => format!(
                "(Это встроенная демо-модель Atelier, а не ИИ. Она отвечает вместо {model}: нет \
                 ключа для провайдера {provider}; {remedy}.)"
            ),
            Self::Japanese => format!(
                "（Atelier 内蔵のデモモデルです。AI ではありません。プロバイダー {provider} のキーがないため、{model} の代わりに答えています: \
                 {remedy}）"
            ),
        }
    }

    /// Why the demo model answers although the default model was requested.
    pub(super) fn without_any_key(self, model: &str) -> String {
        match self {
            Self::English => format!(
                "(This is Atelier's built-in demo model, not an AI. It stands in for {model} \
                 until a model provider has a key: enter one under Models in the console, or with \
                 `atelier models add`.)"
            ),
            Self::Russian => format!(
                "(Это встроенная демо-модель Atelier, а не ИИ. Она отвечает вместо {model}, пока \
                 ни у одного провайдера моделей нет ключа: введите его в консоли на странице \
                 «Модели» или командой `atelier models add`.)"
            ),
            Self::Japanese => format!(
                "（Atelier 内蔵のデモモデルです。AI ではありません。モデルのプロバイダーのキーがまだないため、{model} \
                 の代わりに答えています。コンソールの「モデル」か `atelier models add` で登録してください。）"
            ),
        }
    }

    pub(super) fn help(self) -> &'static str {
        match self {
            Self::English => {
                "I understand only simple requests, such as:\n- read README.md\n- write \
                 notes.txt: hello\n- run git status\n- run the tests\n- rename foo to bar in all \
                 files\n- search for main\n- list src\nSeveral can \
                 be joined with \"then\"."
            }
            Self::Russian => {
                "Я понимаю только простые просьбы, например:\n- прочитай README.md\n- запиши в \
                 notes.txt: привет\n- выполни git status\n- запусти тесты\n- переименуй foo в bar во всех \
                 файлах\n- найди main\n- покажи файлы в \
                 src\nНесколько просьб можно соединить словом «затем»."
            }
            Self::Japanese => {
                "簡単な依頼だけが分かります。例:\n- README.mdを読んで\n- notes.txtに「こんにちは」と書いて\n- git status \
                 を実行して\n- テストを実行して\n- すべてのファイルで「foo」を「bar」に置き換えて\n- 「main」を検索して\n- srcのファイル一覧を見せて\n「それから」でつなげられます。"
            }
        }
    }

    pub(super) fn no_tool(self, tool: &str) -> String {
        match self {
            Self::English => {
                format!("I would need the tool {tool} for that, and this agent does not have it.")
            }
            Self::Russian => {
                format!("Для этого нужен инструмент {tool}, а у этого агента его нет.")
            }
            Self::Japanese => {
                format!("それには {tool} が必要ですが、このエージェントにはありません。")
            }
        }
    }

    /// The outcome of one tool call.
    pub(super) fn outcome(self, words: &str, result: &CallResult) -> String {
        let quoted = quote(&result.content);
        match (self, result.is_error) {
            (Self::English, false) => format!("Done: {words}\n{quoted}"),
            (Self::English, true) => format!("That did not work: {words}\n{quoted}"),
            (Self::Russian, false) => format!("Готово: {words}\n{quoted}"),
            (Self::Russian, true) => format!("Не получилось: {words}\n{quoted}"),
            (Self::Japanese, false) => format!("完了: {words}\n{quoted}"),
            (Self::Japanese, true) => format!("できませんでした: {words}\n{quoted}"),
        }
    }

    /// A request that was not started because an earlier one failed.
    pub(super) fn not_started(self, words: &str) -> String {
        match self {
            Self::English => format!("Not started because of this: {words}"),
            Self::Russian => format!("После этого не начато: {words}"),
            Self::Japanese => format!("その後は実行していません: {words}"),
        }
    }
}

/// The interesting part of a result, as a code block.
fn quote(content: &str) -> String {
    let shown = match serde_json::from_str::<Value>(content) {
        Ok(Value::Object(fields)) => {
            let texts = ["content", "stdout", "stderr", "output", "detail", "error"]
                .iter()
                .filter_map(|name| fields.get(*name)?.as_str())
                .filter(|text| !text.trim().is_empty());
            let texts: Vec<&str> = texts.collect();
            if texts.is_empty() { content.to_owned() } else { texts.join("\n") }
        }
        Ok(_) | Err(_) => content.to_owned(),
    };
    let shown = shown.trim_end();
    match shown.char_indices().nth(QUOTE) {
        Some((end, _)) => format!("```\n{}\n…\n```", &shown[..end]),
        None => format!("```\n{shown}\n```"),
    }
}
