// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the layouts with the kernel's `mlx5_ifc.h`, if it is installed: by a package of kernel headers, or as the
//! file that the environment variable `MLX5_IFC_H` names.

use crate::layout::ALL;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Fields of a structure: first bit and number of bits, by lower-case name.
type Fields = BTreeMap<String, (usize, usize)>;

/// Fields that kernels of 2025 and later have with one bit more.
const GREW: [(&str, &str); 1] = [("mkc", "LOG_PAGE_SIZE")];

fn header() -> Option<String> {
    let mut paths: Vec<PathBuf> = std::env::var_os("MLX5_IFC_H").map(PathBuf::from).into_iter().collect();
    for entry in std::fs::read_dir("/usr/src").into_iter().flatten().flatten() {
        paths.push(entry.path().join("include/linux/mlx5/mlx5_ifc.h"));
    }
    paths.iter().find_map(|path| std::fs::read_to_string(path).ok())
}

/// The words and the relevant punctuation of the text, without comments.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
        } else if "{}[];".contains(c) {
            tokens.push(c.to_string());
            rest = &rest[1..];
        } else if c.is_alphanumeric() || c == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            rest = &rest[end..];
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    tokens
}

struct Parser<'a> {
    tokens: &'a [String],
    at: usize,
    /// Finished structures: fields, bits.
    done: BTreeMap<String, (Fields, usize)>,
}

impl Parser<'_> {
    fn next(&mut self) -> &str {
        self.at += 1;
        self.tokens.get(self.at - 1).map_or("", String::as_str)
    }

    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    /// The product of the dimensions behind a name; 1 without any.
    fn dimensions(&mut self) -> usize {
        let mut count = 1;
        while self.peek() == "[" {
            self.next();
            let number = if self.peek() == "]" { "0".to_owned() } else { self.next().to_owned() };
            let value = match number.strip_prefix("0x") {
                Some(hex) => usize::from_str_radix(hex, 16),
                None => number.parse(),
            };
            count *= value.unwrap_or(0);
            assert_eq!(self.next(), "]");
        }
        count
    }

    /// The body behind a `{`, up to its `}`.
    fn body(&mut self, is_union: bool) -> (Fields, usize) {
        let (mut fields, mut size) = (Fields::new(), 0);
        loop {
            let mut word = self.next().to_owned();
            // The kernel's macro for a flexible array in a union: DECLARE_FLEX_ARRAY(TYPE, NAME).
            let is_flexible = word == "DECLARE_FLEX_ARRAY";
            if is_flexible {
                word = self.next().to_owned();
            }
            let (inner, bits) = match word.as_str() {
                "}" | "" => return (fields, size),
                "u8" => (Fields::new(), 1),
                kind @ ("struct" | "union") => {
                    let is_union = kind == "union";
                    if self.peek() == "{" {
                        self.next();
                        self.body(is_union)
                    } else {
                        let name = self.next().to_owned();
                        (Fields::new(), self.done.get(&name).map_or(0, |(_, bits)| *bits))
                    }
                }
                _ => continue,
            };
            let name = if self.peek() == ";" { String::new() } else { self.next().to_lowercase() };
            let bits = if is_flexible { 0 } else { bits * self.dimensions() };
            let at = if is_union { 0 } else { size };
            size = if is_union { size.max(bits) } else { size + bits };
            // The fields of an anonymous struct belong to the surrounding one.
            for (inner, (from, bits)) in inner {
                let name = if name.is_empty() { inner } else { format!("{name}_{inner}") };
                fields.insert(name, (at + from, bits));
            }
            if !name.is_empty() {
                fields.insert(name, (at, bits));
            }
        }
    }

    fn all(mut self) -> BTreeMap<String, (Fields, usize)> {
        while self.at < self.tokens.len() {
            let kind = self.next().to_owned();
            if (kind == "struct" || kind == "union") && self.tokens.get(self.at + 1).is_some_and(|t| t == "{")
            {
                let name = self.next().to_owned();
                self.next();
                let body = self.body(kind == "union");
                self.done.insert(name, body);
            }
        }
        self.done
    }
}

#[test]
fn layouts_are_those_of_the_kernel() {
    let Some(text) = header() else {
        uverbs_testkit::machine::skip("layouts of firmware commands", "linux-headers-amd64");
        return;
    };
    let tokens = tokens(&text);
    let structures = Parser { tokens: &tokens, at: 0, done: BTreeMap::new() }.all();
    for (name, fields) in ALL {
        let (known, _) = structures.get(&format!("mlx5_ifc_{name}_bits")).expect(name);
        for (field, ours) in *fields {
            let theirs = known.get(&field.to_lowercase()).copied();
            let (first, bits) = ours.place();
            // Later headers have more high bits, of those that were reserved.
            let grown = GREW.contains(&(*name, *field)).then(|| (first - 1, bits + 1));
            assert!(theirs == Some((first, bits)) || theirs == grown, "{name}.{field}: {theirs:?}");
        }
    }
}

#[test]
fn the_parser_computes_offsets_as_c() {
    let text = "struct a_bits { u8 x[0x8]; u8 y; /* z */ u8 z[2]; };
        union u_bits { struct a_bits one; u8 two[0x20]; };
        struct b_bits { u8 f; struct { u8 g[3]; union u_bits h; } i; struct { u8 j; }; u8 list[][0x40]; };
        struct c_bits { u8 k[4]; union { DECLARE_FLEX_ARRAY(struct a_bits, l); DECLARE_FLEX_ARRAY(struct b_bits, m); }; };";
    let tokens = tokens(text);
    let all = Parser { tokens: &tokens, at: 0, done: BTreeMap::new() }.all();
    assert_eq!(all["a_bits"].0["z"], (9, 2));
    assert_eq!(all["u_bits"].1, 32);
    let b = &all["b_bits"].0;
    assert_eq!((b["i_g"], b["i_h"], b["j"], b["list"]), ((1, 3), (4, 32), (36, 1), (37, 0)));
    assert_eq!((all["c_bits"].0["l"], all["c_bits"].0["m"], all["c_bits"].1), ((4, 0), (4, 0), 4));
}
