//! A text with a cursor.

#[derive(Debug, Default)]
pub(super) struct Buffer {
    text: String,
    /// The position of the cursor in bytes, always between two characters.
    cursor: usize,
}

impl Buffer {
    pub(super) fn with(text: &str) -> Self {
        Self { text: text.to_owned(), cursor: text.len() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(super) fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    /// Whether the last line ends with a backslash, so that Enter continues the message.
    pub(super) fn continues(&self) -> bool {
        self.cursor == self.text.len() && self.text.ends_with('\\')
    }

    pub(super) fn continue_line(&mut self) {
        self.text.pop();
        self.cursor = self.text.len();
        self.insert("\n");
    }

    fn before(&self) -> usize {
        self.text[..self.cursor].char_indices().next_back().map_or(0, |(at, _)| at)
    }

    fn after(&self) -> usize {
        let next = self.text[self.cursor..].chars().next();
        self.cursor + next.map_or(0, char::len_utf8)
    }

    fn remove(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.cursor = from;
    }

    pub(super) fn backspace(&mut self) {
        self.remove(self.before(), self.cursor);
    }

    pub(super) fn delete(&mut self) {
        self.remove(self.cursor, self.after());
    }

    pub(super) fn left(&mut self) {
        self.cursor = self.before();
    }

    pub(super) fn right(&mut self) {
        self.cursor = self.after();
    }

    pub(super) fn move_to_end(&mut self) {
        self.cursor = self.text.len();
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }

    pub(super) fn move_to_line_start(&mut self) {
        self.cursor = self.line_start();
    }

    pub(super) fn move_to_line_end(&mut self) {
        self.cursor = self.line_end();
    }

    pub(super) fn kill_to_line_end(&mut self) {
        self.remove(self.cursor, self.line_end());
    }

    pub(super) fn kill_to_line_start(&mut self) {
        self.remove(self.line_start(), self.cursor);
    }

    fn word_start(&self) -> usize {
        let before = self.text[..self.cursor].trim_end();
        before
            .rfind(char::is_whitespace)
            .map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8))
    }

    pub(super) fn word_left(&mut self) {
        self.cursor = self.word_start();
    }

    pub(super) fn word_right(&mut self) {
        let rest = &self.text[self.cursor..];
        let spaces = rest.len() - rest.trim_start().len();
        let word = rest[spaces..].find(char::is_whitespace).unwrap_or(rest.len() - spaces);
        self.cursor += spaces + word;
    }

    pub(super) fn kill_word(&mut self) {
        self.remove(self.word_start(), self.cursor);
    }

    /// Moves the cursor a line up. `false` if it is on the first line.
    pub(super) fn up(&mut self) -> bool {
        let start = self.line_start();
        if start == 0 {
            return false;
        }
        let column = self.text[start..self.cursor].chars().count();
        self.cursor = start - 1;
        self.move_to_column(column);
        true
    }

    /// Moves the cursor a line down. `false` if it is on the last line.
    pub(super) fn down(&mut self) -> bool {
        let end = self.line_end();
        if end == self.text.len() {
            return false;
        }
        let column = self.text[self.line_start()..self.cursor].chars().count();
        self.cursor = end + 1;
        self.move_to_column(column);
        true
    }

    /// Moves the cursor to a column of its line, or to the end of a shorter line.
    fn move_to_column(&mut self, column: usize) {
        let (start, end) = (self.line_start(), self.line_end());
        let at = self.text[start..end].char_indices().nth(column);
        self.cursor = at.map_or(end, |(at, _)| start + at);
    }

    pub(super) fn word_before_cursor(&self) -> &str {
        let before = &self.text[..self.cursor];
        let start = before
            .rfind(char::is_whitespace)
            .map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8));
        &before[start..]
    }

    pub(super) fn replace_word(&mut self, word: &str) {
        let start = self.cursor - self.word_before_cursor().len();
        self.remove(start, self.cursor);
        self.insert(word);
    }
}
