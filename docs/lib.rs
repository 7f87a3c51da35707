// SPDX-License-Identifier: MIT OR Apache-2.0
//! The documentation, in the form that tests need.
//!
//! Rust programs in README.md and in the pages of the book are compiled, and most of them run, as doc tests of this
//! crate. [`commands`] gives the command lines in the pages to the crates that define those commands, whose tests parse
//! them.
//! `tests/book.rs` compares lists and tables with the code.

use std::fs;
use std::path::{Path, PathBuf};

/// The documents that have Rust programs.
#[cfg(doctest)]
mod programs {
    macro_rules! pages {
        ($($name:ident $path:literal)*) => {$(
            #[doc = include_str!($path)]
            mod $name {}
        )*};
    }
    pages! {
        readme "../README.md"
        getting_started "src/start/getting-started.md"
        concepts "src/start/concepts.md"
        asynchronous "src/guides/async.md"
        aws "src/guides/aws.md"
        owned_buffers "src/guides/owned-buffers.md"
        connections "src/guides/connections.md"
        faults "src/guides/faults.md"
        finding_a_bug "src/guides/finding-a-bug.md"
        observing "src/guides/observing.md"
        order "src/guides/order.md"
        testing "src/guides/testing-without-a-nic.md"
    }
}

/// The top folder of the repository.
#[must_use]
pub fn repo_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A page of the documentation.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its path in the repository.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Documents outside of the book.
const OTHERS: [&str; 3] = ["README.md", "CONTRIBUTING.md", "SECURITY.md"];

/// All pages of the book, and the other documents.
///
/// # Panics
/// If a page can't be read.
#[must_use]
pub fn pages() -> Vec<Page> {
    let mut paths: Vec<PathBuf> = OTHERS.iter().map(|name| repo_root().join(name)).collect();
    let mut folders = vec![repo_root().join("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the book") {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let page = |path: PathBuf| Page {
        text: fs::read_to_string(&path).expect("a page is text"),
        path: path.strip_prefix(repo_root()).unwrap_or(&path).to_string_lossy().into_owned(),
    };
    paths.into_iter().map(page).collect()
}

/// The text of a page of the reference.
///
/// # Panics
/// If there is no such page.
#[must_use]
pub fn reference(name: &str) -> String {
    fs::read_to_string(repo_root().join("docs/src/reference").join(name)).expect("a page of the reference")
}

/// A block of code in a page.
#[derive(Clone, Debug)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// The text after the fence: the language, and for Rust attributes of the doc test.
    pub language: String,
    /// Its lines.
    pub lines: Vec<String>,
}

/// The parts of a page.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The blocks of code.
    pub blocks: Vec<Block>,
    /// The other lines, with their numbers from 1.
    pub prose: Vec<(usize, String)>,
}

impl Page {
    /// Separates code from prose.
    ///
    /// # Panics
    /// If a block has no end.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let mut parts = Parts::default();
        let mut open: Option<Block> = None;
        for (line, text) in (1..).zip(self.text.lines()) {
            let fence = text.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (None, Some(language)) => {
                    open = Some(Block { line, language: language.trim().to_owned(), lines: Vec::new() });
                }
                (None, None) => parts.prose.push((line, text.to_owned())),
                (Some(_), Some(_)) => parts.blocks.extend(open.take()),
                (Some(block), None) => block.lines.push(text.trim_start().to_owned()),
            }
        }
        assert!(open.is_none(), "{}: a block of code has no end", self.path);
        parts
    }

    /// The text in code font outside of blocks, with its lines. A text may continue in the next line.
    #[must_use]
    pub fn code_spans(&self) -> Vec<(usize, String)> {
        let mut spans = Vec::new();
        let prose = self.parts().prose;
        for paragraph in prose.split(|(_, text)| text.trim().is_empty()) {
            let Some((first, _)) = paragraph.first() else { continue };
            let lines: Vec<_> = paragraph.iter().map(|(_, text)| text.as_str()).collect();
            let mut line = *first;
            for (i, text) in lines.join("\n").split('`').enumerate() {
                if i % 2 == 1 {
                    spans.push((line, text.replace('\n', " ")));
                }
                line += text.matches('\n').count();
            }
        }
        spans
    }

    /// The command lines of its blocks for a shell, with their lines.
    fn command_lines(&self) -> Vec<(usize, String)> {
        let mut lines: Vec<(usize, String)> = Vec::new();
        for block in self.parts().blocks.into_iter().filter(|block| block.language == "console") {
            let mut continued = false;
            for (line, text) in (block.line + 1..).zip(block.lines) {
                let (text, more) = match text.strip_suffix('\\') {
                    Some(text) => (text.to_owned(), true),
                    None => (text, false),
                };
                match lines.last_mut() {
                    Some((_, last)) if continued => last.push_str(&text),
                    _ => lines.push((line, text)),
                }
                continued = more;
            }
        }
        lines
    }
}

/// A command in the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The page and the line.
    pub at: String,
    /// The name of the program, and its arguments, without assignments of environment variables before it.
    pub words: Vec<String>,
    /// Whether it is in a block for a shell, and not in a sentence.
    pub is_block: bool,
}

/// All commands in the documentation.
///
/// # Panics
/// If a line in a block for a shell is no command.
#[must_use]
pub fn all_commands() -> Vec<Command> {
    let mut commands = Vec::new();
    for page in pages() {
        let blocks = page.command_lines().into_iter().map(|line| (line, true));
        let spans = page.code_spans().into_iter().map(|span| (span, false));
        for ((line, text), is_block) in blocks.chain(spans) {
            let at = format!("{}:{line}", page.path);
            let Some(words) = shlex::split(&text) else {
                assert!(!is_block, "{at}: not a command: {text}");
                continue;
            };
            for words in words.split(|word| matches!(word.as_str(), "&&" | "||" | "|" | ";" | "&")) {
                let mut words: Vec<_> =
                    words.iter().skip_while(|word| is_assignment(word)).cloned().collect();
                if let Some(program) = words.first_mut() {
                    // `target/release/uverbs` is `uverbs`.
                    *program = program.rsplit('/').next().unwrap_or_default().to_owned();
                    commands.push(Command { at: at.clone(), words, is_block });
                }
            }
        }
    }
    commands
}

fn is_assignment(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or_default();
    name.len() < word.len() && name.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
}

/// The commands in the documentation that begin with these words. Sentences also name a program alone, or with `...`
/// for arguments; these are left out.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn commands(program: &[&str]) -> Vec<Command> {
    let is_meant = |command: &Command| {
        let is_whole = command.is_block
            || command.words.len() > program.len() && !command.words.iter().any(|word| word == "...");
        is_whole && command.words.iter().zip(program).filter(|(a, b)| a == b).count() == program.len()
    };
    let found: Vec<_> = all_commands().into_iter().filter(is_meant).collect();
    assert!(!found.is_empty(), "the documentation has no command of {program:?}");
    found
}
