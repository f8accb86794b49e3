//! Circles of imports: files of one folder that need each other cannot be read, or tested, one after the other. Modules of a
//! crate stand on floors (docs/architecture.md) and use those below only.
//!
//! Reads the `use` lines of the program and of the crates. A node is a file of a folder, or a folder in it with all that
//! is below. An item that `mod.rs` passes on (`pub use`) counts as imported from the file that has it. Test code is left
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::docs::{entries, in_repository, read, sources};

/// Arrows of one folder: a node with the nodes that it imports from.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// A source file as a module: the names on the way to it from the root of its crate.
struct Module {
    path: Vec<String>,
    /// Paths of its `use` lines, as they are written, and whether they are passed on.
    uses: Vec<(bool, Vec<String>)>,
}

impl Module {
    fn read(root: &Path, file: &Path) -> Self {
        let relative = file.strip_prefix(root).unwrap().with_extension("");
        let mut path: Vec<String> = relative.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
        path.pop_if(|last| matches!(last.as_str(), "mod" | "lib"));
        Self { path, uses: uses(&fs::read_to_string(file).unwrap()) }
    }

    /// An imported path from the root of the crate, if it is one of this crate.
    fn absolute(&self, used: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
        let (mut base, mut rest) = (self.path.clone(), used);
        match rest.first()?.as_str() {
            "crate" => (base, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            child => {
                base.push(child.to_owned());
                return modules.contains(&base).then(|| [&self.path[..], used].concat());
            }
        }
        while rest.first().is_some_and(|step| step == "super") {
            base.pop();
            rest = &rest[1..];
        }
        Some([&base[..], rest].concat())
    }
}

/// Paths of all `use` lines before the tests of a file.
fn uses(text: &str) -> Vec<(bool, Vec<String>)> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    let mut found = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let (is_public, start) = match line.split_once("use ") {
            Some(("", tree)) => (false, tree),
            Some((visibility, tree)) if visibility.starts_with("pub") => (true, tree),
            _ => continue,
        };
        let mut tree = start.to_owned();
        while !tree.contains(';') {
            tree.push_str(lines.next().expect("a `use` ends"));
        }
        expand(&tree[..tree.find(';').unwrap()], &[], &mut |path| found.push((is_public, path)));
    }
    found
}

/// Calls `found` with each path of a tree such as `a::{b, c::{d, e}}`.
fn expand(tree: &str, before: &[String], found: &mut impl FnMut(Vec<String>)) {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap();
        let steps = path.split("::").filter(|step| !step.is_empty() && *step != "self" || before.is_empty());
        found(before.iter().cloned().chain(steps.map(str::to_owned)).collect());
        return;
    };
    let steps = head.split("::").filter(|step| !step.trim().is_empty()).map(|step| step.trim().to_owned());
    let before: Vec<String> = before.iter().cloned().chain(steps).collect();
    let (mut depth, mut start) = (0, 0);
    let group = group.trim_end().strip_suffix('}').expect("a group ends");
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&group[start..at], &before, found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !group[start..].trim().is_empty() {
        expand(&group[start..], &before, found);
    }
}

/// All source files of a crate but for those of tests.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    sources(folder, &mut all);
    let is_tests = |name: &std::ffi::OsStr| ["tests", "tests.rs"].iter().any(|of| name == *of);
    all.retain(|path| !path.strip_prefix(folder).unwrap().iter().any(is_tests));
    all
}

/// Arrows of each folder of a crate, by the names on the way to it.
fn arrows(modules: &[Module]) -> BTreeMap<Vec<String>, Arrows> {
    let known: BTreeSet<Vec<String>> = modules
        .iter()
        .flat_map(|module| (0..=module.path.len()).map(|len| module.path[..len].to_vec()))
        .collect();
    // Items that a module passes on, with the paths where they are.
    let mut passed_on = BTreeMap::new();
    for module in modules {
        for (_, used) in module.uses.iter().filter(|(is_public, _)| *is_public) {
            let Some(origin) = module.absolute(used, &known) else { continue };
            let item = [&module.path[..], &origin[origin.len() - 1..]].concat();
            passed_on.insert(item, origin);
        }
    }
    let mut folders: BTreeMap<Vec<String>, Arrows> = BTreeMap::new();
    for module in modules {
        for (is_public, used) in &module.uses {
            let Some(mut target) = module.absolute(used, &known) else { continue };
            while let Some(origin) = passed_on.get(&target).filter(|origin| **origin != target) {
                target.clone_from(origin);
            }
            // A module that passes on what its own files have does not need them for itself.
            if *is_public && target.starts_with(&module.path) {
                continue;
            }
            let shared = module.path.iter().zip(&target).take_while(|(one, other)| one == other).count();
            // The folder in which the two ways part; a file without any below it is no folder.
            let folder = &target[..shared];
            let node = |path: &[String]| match path.get(shared) {
                Some(name) if known.contains(&path[..=shared]) => name.clone(),
                _ => "mod".to_owned(),
            };
            let (from, to) = (node(&module.path), node(&target));
            if from != to {
                folders.entry(folder.to_vec()).or_default().entry(from).or_default().insert(to);
            }
        }
    }
    folders
}

/// The nodes that can be reached from one.
fn reached<'a>(arrows: &'a Arrows, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut ahead) = (BTreeSet::new(), vec![from]);
    while let Some(node) = ahead.pop() {
        let next = arrows.get(node).into_iter().flatten().map(String::as_str);
        ahead.extend(next.filter(|next| seen.insert(*next)));
    }
    seen
}

/// Circles of a folder: for each, the nodes that reach each other.
fn circles(arrows: &Arrows) -> BTreeSet<BTreeSet<&str>> {
    let circle = |node: &'_ String| -> BTreeSet<&str> {
        let all = reached(arrows, arrows.get_key_value(node).expect("a node").0);
        all.into_iter().filter(|other| reached(arrows, other).contains(node.as_str())).collect()
    };
    arrows.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

fn modules(root: &Path) -> Vec<Module> {
    files(root).iter().map(|file| Module::read(root, file)).collect()
}

#[test]
fn no_folder_has_a_circle() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = String::new();
    for root in ["src", "crates/commands/src", "crates/core/src", "crates/http2/src", "crates/transport/src"]
    {
        let modules = modules(&home.join(root));
        assert!(modules.len() > 10, "{} files in {root}", modules.len());
        for (folder, arrows) in arrows(&modules) {
            let folder = [&[root.to_owned()][..], &folder].concat().join("/");
            for circle in circles(&arrows) {
                found.push_str(&format!("{folder}: {circle:?}\n"));
                for from in &circle {
                    let to: Vec<_> = arrows[*from].iter().filter(|to| circle.contains(to.as_str())).collect();
                    found.push_str(&format!("    {from} -> {to:?}\n"));
                }
            }
        }
    }
    assert!(found.is_empty(), "circles of imports:\n{found}");
}

/// Floors of a crate, the highest first: the modules in the first column of the table behind a heading.
fn floors(document: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = document.split_once(&format!("\n### {heading}\n")).expect("a heading");
    let table =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows = table.filter(|line| line.starts_with("| `"));
    // Text between backticks is at the odd places.
    let modules = |row: &str| {
        let first = row.split(" | ").next().unwrap_or_default();
        first.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    rows.map(modules).collect()
}

/// Imports that lead to the own floor or to a higher one. The arrows are those of the folder of the crate.
fn arrows_up(floors: &[Vec<String>], arrows: &Arrows) -> Vec<String> {
    let stem = |entry: &'_ String| entry.trim_end_matches('/').trim_end_matches(".rs").to_owned();
    let floor =
        |module: &str| floors.iter().position(|floor| floor.iter().any(|entry| stem(entry) == module));
    let all = arrows.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| matches!((floor(from), floor(to)), (Some(from), Some(to)) if from >= to))
        .map(|(from, to)| format!("{from} -> {to}"))
        .collect()
}

#[test]
fn the_map_has_every_module_and_no_arrow_leads_up() {
    let document = read("docs/architecture.md");
    for (heading, root) in [
        ("Floors of the program", "src"),
        ("Floors of the commands", "crates/commands/src"),
        ("Floors of the core", "crates/core/src"),
    ] {
        let floors = floors(&document, heading);
        let mut listed: Vec<String> = floors.concat();
        listed.sort();
        let mut there: Vec<String> = entries(root)
            .into_iter()
            .map(|(name, is_folder)| if is_folder { format!("{name}/") } else { name })
            .collect();
        there.sort();
        assert_eq!(
            listed, there,
            "modules of {root} in docs/architecture.md, {heading}, and those that there are"
        );
        let arrows = arrows(&modules(&in_repository(root)));
        let of_crate = &arrows[&Vec::new()];
        assert!(of_crate.len() > 2, "{of_crate:?}");
        let up = arrows_up(&floors, of_crate);
        assert!(
            up.is_empty(),
            "{root}: imports of a module that is no lower in docs/architecture.md: {up:?}"
        );
    }
}

/// Crates of this repository that a manifest names for what is shipped.
fn shipped_crates(manifest: &str) -> BTreeSet<String> {
    let text = read(manifest);
    let (_, rest) = text.split_once("\n[dependencies]\n").expect("dependencies");
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split([' ', '.']).next()?.strip_prefix("deltafan"));
    names.map(|name| name.trim_start_matches('-').to_owned()).collect()
}

/// Cargo refuses circles of crates, but one manifest serves the relay's library and the binary that has the commands too.
#[test]
fn the_relay_does_not_reach_the_commands_nor_they_the_relay() {
    let all = files(&in_repository("src"));
    let names_them = |file: &&PathBuf| fs::read_to_string(file).unwrap().contains("deltafan_commands");
    let users: Vec<_> = all.iter().filter(names_them).collect();
    assert_eq!(users, [&in_repository("src/main.rs")]);
    for (manifest, expected) in [
        ("crates/commands/Cargo.toml", &["core", "transport"][..]),
        ("crates/transport/Cargo.toml", &["core"]),
        ("crates/core/Cargo.toml", &[]),
        ("crates/http2/Cargo.toml", &[]),
    ] {
        assert!(shipped_crates(manifest).iter().eq(expected), "{manifest}: {:?}", shipped_crates(manifest));
    }
}

#[test]
fn an_arrow_to_the_own_floor_or_a_higher_one_is_found() {
    let text = "\n### Floors\n\n| Modules of `src/` | Task |\n|---|---|\n| `a/` | x `c.rs` |\n| `b.rs`, `c/` | y |\n\n| `d/` | z |\n";
    let floors = floors(text, "Floors");
    assert_eq!(floors, [vec!["a/"], vec!["b.rs", "c/"]]);
    let up = |from: &str, to: &str| {
        let arrows = Arrows::from([(from.to_owned(), BTreeSet::from([to.to_owned()]))]);
        arrows_up(&floors, &arrows)
    };
    assert!(up("a", "b").is_empty());
    assert_eq!(up("b", "a"), ["b -> a"]);
    assert_eq!(up("b", "c"), ["b -> c"]);
}

#[test]
fn a_circle_is_found_however_its_imports_are_written() {
    let module = |path: &str, text: &str| Module {
        path: path.split("::").filter(|step| !step.is_empty()).map(str::to_owned).collect(),
        uses: uses(text),
    };
    let found = |a: &str, b: &str| {
        let modules = [
            module("", "mod f;"),
            module(
                "f",
                "mod a;\nmod b;\nmod c;\npub use a::{A, Other};\npub(crate) use self::b::B;\npub struct Own;",
            ),
            module("f::a", a),
            module("f::b", b),
            module("f::c", "use super::{A, B};"),
        ];
        let arrows = arrows(&modules);
        arrows.values().map(circles).any(|circles| !circles.is_empty())
    };
    for (a, b) in [
        ("use super::b::B;", "use super::a::A;"),
        ("use super::B;", "use crate::f::{A};"),
        ("use crate::{\n    f::{b::{self, B}, c},\n};", "use super::{x, A as Another};"),
        ("#[cfg(test)]\nmod tests;\n\nuse super::b::B;", "use super::a::A;"),
        ("use super::b;\nuse std::fmt;", "pub(super) use super::a::A;"),
        ("use super::c::C;", ""),
    ] {
        assert!(found(a, b), "{a} and {b}");
    }
    for (a, b) in [
        ("use super::b::B;", ""),
        ("use super::Own;", "use super::a::A;"),
        ("use super::B;", "#[cfg(test)]\nmod tests {\n    use super::super::a::A;\n}"),
        ("use std::a::b;", "use super::a::A;"),
    ] {
        assert!(!found(a, b), "{a} and {b}");
    }
}
