// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask book`: builds the book in `docs` with mdBook, and checks the links of its pages.
//!
//! The check is our own: mdbook-linkcheck2 and lychee depend on 300 and 500 packages, most of them for requests to
//! other sites, which a gate without a network can't make. Without these requests, the check is that each relative link
//! names a file of the book and a heading in it.

use crate::{repo_root, run, tools};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

/// Build the book in target/book and check its links
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn main(_: &Args) -> Result<ExitCode> {
    build()?;
    eprintln!("book: {}", output().join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Where the pages are.
fn output() -> PathBuf {
    repo_root().join("target/book")
}

/// Builds the book and checks its links.
pub(crate) fn build() -> Result<()> {
    let log = run::output(tools::MDBOOK.command()?.args(["build", "docs"]))?;
    print!("{log}");
    let pages = pages(&output())?;
    let broken = broken_links(&output(), &pages);
    if !broken.is_empty() {
        bail!("broken links in the book:\n{}", broken.join("\n"));
    }
    eprintln!("book: {} pages, {} links", pages.len(), pages.values().map(|p| p.links.len()).sum::<usize>());
    Ok(())
}

/// The links of a page and their possible targets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    ids: BTreeSet<String>,
    links: Vec<String>,
}

impl Page {
    fn parse(html: &str) -> Self {
        let mut page = Self::default();
        for tag in html.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap_or_default();
            if let Some(id) = attribute(tag, "id") {
                page.ids.insert(id);
            }
            let name = tag.split_whitespace().next().unwrap_or_default();
            let link = match name {
                "a" => attribute(tag, "href"),
                "img" => attribute(tag, "src"),
                _ => None,
            };
            page.links.extend(link);
        }
        page
    }
}

/// The value of an attribute in a tag.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let start = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    let value = tag.get(start..)?.split('"').next()?;
    Some(value.replace("&amp;", "&"))
}

/// The pages of a folder, by their paths in it.
fn pages(folder: &Path) -> Result<BTreeMap<PathBuf, Page>> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = fs::read_dir(&next).with_context(|| format!("cannot read {}", next.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "html") {
                let html = fs::read_to_string(&path)?;
                pages.insert(path.strip_prefix(folder)?.to_owned(), Page::parse(&html));
            }
        }
    }
    ensure!(!pages.is_empty(), "no pages in {}", folder.display());
    Ok(pages)
}

/// The broken links. Links to other sites are not checked.
fn broken_links(folder: &Path, pages: &BTreeMap<PathBuf, Page>) -> Vec<String> {
    let mut broken = Vec::new();
    // The page for unknown addresses (404) is shown at any path, so its links are absolute.
    for (path, page) in pages.iter().filter(|(path, _)| *path != Path::new("404.html")) {
        for link in page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, id) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let leads = match pages.get(&target) {
                Some(page) => id.is_empty() || page.ids.contains(id),
                None => folder.join(&target).is_file(),
            };
            if !leads {
                broken.push(format!("  {}: {link}", path.display()));
            }
        }
    }
    broken
}

/// The path of a link in a page.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut target = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                target.pop();
            }
            Component::Normal(part) => target.push(part),
            _ => {}
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found() {
        let one = Page::parse(
            r##"<h1 id="top"><a class="header" href="#top">T</a></h1><a href="b/two.html#there">x</a>
                <a href="b/two.html#gone">x</a><a href="b/three.html">x</a><a href="https://kernel.org">x</a>"##,
        );
        let two = Page::parse(r#"<p id="there"><a href="../one.html">x</a><img alt="" src="no.svg">"#);
        let pages = BTreeMap::from([("one.html".into(), one), ("b/two.html".into(), two)]);
        let broken = broken_links(Path::new("/nonexistent"), &pages);
        assert_eq!(
            broken,
            ["  b/two.html: no.svg", "  one.html: b/two.html#gone", "  one.html: b/three.html"]
        );
    }
}
