use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

use super::super::{Directory, Scan};
use super::{CLUSTER, WRAPPER, binary_response, cluster, response};

const DEADLINE: Duration = Duration::from_secs(20);

struct Fixture {
    root: TempDir,
    watched: PathBuf,
    directory: Option<Directory>,
}

impl Fixture {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let watched = root.path().join("watched");
        fs::create_dir(&watched).unwrap();
        Self { root, watched, directory: None }
    }

    fn write(&self, file: &str, names: &[&str]) {
        write(&self.watched.join(file), names);
    }

    /// Waits until a state comes that has exactly these clusters, and failures of exactly these files.
    async fn until(&mut self, names: &[&str], failed: &[&str]) -> Arc<Scan> {
        let directory = self.directory.get_or_insert_with(|| Directory::open(&self.watched).unwrap());
        let mut last = None;
        let found = timeout(DEADLINE, async {
            loop {
                let scan = directory.next().await;
                let names_now: Vec<_> = scan.resources.iter().map(|of| of.name().as_str()).collect();
                let failed_now: Vec<_> = scan.failures.iter().map(|failure| failure.file.as_str()).collect();
                if names_now == names && failed_now == failed {
                    return scan;
                }
                last = Some(scan);
            }
        });
        found.await.unwrap_or_else(|_| panic!("never {names:?} and failures {failed:?}; last {last:#?}"))
    }
}

fn write(path: &Path, names: &[&str]) {
    let clusters: Vec<_> = names.iter().map(|name| cluster(name)).collect();
    fs::write(path, response(&clusters).to_string()).unwrap();
}

fn version(scan: &Scan, name: &str) -> String {
    scan.resources.iter().find(|resource| resource.name().as_str() == name).unwrap().version().to_owned()
}

#[tokio::test]
async fn a_missing_directory_and_a_file_are_refused() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let kind = |name: &str| Directory::open(root.path().join(name)).unwrap_err().kind();
    assert_eq!((kind("nowhere"), kind("file")), (ErrorKind::NotFound, ErrorKind::NotADirectory));
}

#[tokio::test]
async fn an_empty_directory_is_a_state_too() {
    Fixture::new().until(&[], &[]).await;
}

#[tokio::test]
async fn files_are_created_changed_renamed_over_and_deleted() {
    let mut fixture = Fixture::new();
    fixture.write("a.json", &["a"]);
    let scan = fixture.until(&["a"], &[]).await;

    fixture.write("b.json", &["b", "c"]);
    let more = fixture.until(&["a", "b", "c"], &[]).await;
    assert_eq!(version(&more, "a"), version(&scan, "a"));

    write(&fixture.root.path().join("new"), &["d"]);
    fs::rename(fixture.root.path().join("new"), fixture.watched.join("b.json")).unwrap();
    fixture.until(&["a", "d"], &[]).await;

    fs::rename(fixture.watched.join("b.json"), fixture.watched.join("z.json")).unwrap();
    fs::write(fixture.watched.join("b.pb"), binary_response(response(&[cluster("e")]))).unwrap();
    fixture.until(&["a", "d", "e"], &[]).await;

    fs::remove_file(fixture.watched.join("a.json")).unwrap();
    fixture.until(&["d", "e"], &[]).await;
}

#[tokio::test]
async fn resources_of_a_bad_file_are_kept_until_it_is_good_again_or_gone() {
    let mut fixture = Fixture::new();
    fixture.write("a.json", &["a"]);
    fixture.write("b.json", &["b"]);
    fixture.until(&["a", "b"], &[]).await;

    // A writer that truncates, then gets as far as half.
    let whole = response(&[cluster("a"), cluster("a2")]).to_string();
    fs::write(fixture.watched.join("a.json"), &whole[..whole.len() / 2]).unwrap();
    let scan = fixture.until(&["a", "b"], &["a.json"]).await;
    assert!(scan.failures[0].message.contains("not JSON"), "{:?}", scan.failures);
    assert!(scan.failures[0].message.contains("is kept"), "{:?}", scan.failures);
    fs::write(fixture.watched.join("a.json"), whole).unwrap();
    fixture.until(&["a", "a2", "b"], &[]).await;

    fs::write(fixture.watched.join("b.json"), "").unwrap();
    fixture.until(&["a", "a2", "b"], &["b.json"]).await;
    fs::remove_file(fixture.watched.join("b.json")).unwrap();
    fixture.until(&["a", "a2"], &[]).await;
}

#[tokio::test]
async fn a_file_that_is_bad_from_the_start_is_only_named() {
    let mut fixture = Fixture::new();
    fs::write(fixture.watched.join("a.yaml"), "resources: {").unwrap();
    fixture.write("b.json", &["b"]);
    let scan = fixture.until(&["b"], &["a.yaml"]).await;
    assert!(!scan.failures[0].message.contains("kept"), "{:?}", scan.failures);
}

#[tokio::test]
async fn hidden_files_other_files_and_subdirectories_are_passed_over() {
    let mut fixture = Fixture::new();
    fixture.write(".hidden.json", &["hidden"]);
    fs::write(fixture.watched.join("notes.txt"), "not ours").unwrap();
    fs::create_dir(fixture.watched.join("sub.json")).unwrap();
    fixture.write("sub.json/below.json", &["below"]);
    fixture.write("a.json", &["a"]);
    fixture.until(&["a"], &[]).await;
}

#[tokio::test]
async fn a_kubernetes_volume_is_followed_through_its_swap() {
    let mut fixture = Fixture::new();
    let watched = fixture.watched.clone();
    let publish = |version: &str, files: &[(&str, &str)]| {
        fs::create_dir(watched.join(version)).unwrap();
        files.iter().for_each(|(file, name)| write(&watched.join(version).join(file), &[name]));
        symlink(version, watched.join("..data_tmp")).unwrap();
        fs::rename(watched.join("..data_tmp"), watched.join("..data")).unwrap();
    };
    publish("..2024_1", &[("a.json", "a1"), ("b.json", "b1")]);
    symlink("..data/a.json", watched.join("a.json")).unwrap();
    symlink("..data/b.json", watched.join("b.json")).unwrap();
    fixture.until(&["a1", "b1"], &[]).await;

    publish("..2024_2", &[("a.json", "a2")]);
    fs::remove_dir_all(watched.join("..2024_1")).unwrap();
    // The key that went is a link to nothing until it is taken away.
    fixture.until(&["a2", "b1"], &["b.json"]).await;
    fs::remove_file(watched.join("b.json")).unwrap();
    fixture.until(&["a2"], &[]).await;
}

#[tokio::test]
async fn of_two_files_with_one_name_the_first_counts_and_the_other_is_named() {
    let mut fixture = Fixture::new();
    fs::write(fixture.watched.join("b.json"), response(&[cluster("x"), cluster("b")]).to_string()).unwrap();
    let other = json!({"@type": CLUSTER, "name": "x", "connectTimeout": "9s"});
    let alone = fixture.until(&["b", "x"], &[]).await;

    fs::write(fixture.watched.join("a.json"), other.to_string()).unwrap();
    let both = fixture.until(&["b", "x"], &["b.json"]).await;
    assert_ne!(version(&alone, "x"), version(&both, "x"), "a.json sorts first");
    assert!(both.failures[0].message.contains("is also in a.json"), "{:?}", both.failures);

    fs::remove_file(fixture.watched.join("a.json")).unwrap();
    let again = fixture.until(&["b", "x"], &[]).await;
    assert_eq!(version(&alone, "x"), version(&again, "x"));
}

#[tokio::test]
async fn r_xt_01_of_two_spellings_in_files_the_first_counts() {
    let mut fixture = Fixture::new();
    let spelled = |name: &str| json!({"@type": WRAPPER, "name": name, "resource": cluster("x")}).to_string();
    fs::write(fixture.watched.join("a.json"), spelled("xdstp://a/t/x?a=1&b=2")).unwrap();
    fs::write(fixture.watched.join("b.json"), spelled("xdstp://a/t/x?b=2&a=1")).unwrap();
    fixture.until(&["xdstp://a/t/x?a=1&b=2"], &["b.json"]).await;
}

/// The cache and the reader hold the same resources, so an equal copy would take memory for itself.
#[tokio::test]
async fn what_did_not_change_in_a_file_is_not_held_twice() {
    let mut fixture = Fixture::new();
    fixture.write("a.json", &["a", "b"]);
    let before = fixture.until(&["a", "b"], &[]).await;
    fixture.write("a.json", &["a", "c"]);
    let after = fixture.until(&["a", "c"], &[]).await;
    assert!(Arc::ptr_eq(&before.resources[0], &after.resources[0]));
}

#[tokio::test]
async fn a_fifo_and_a_file_too_large_hang_and_fill_nothing() {
    let mut fixture = Fixture::new();
    let fifo = fixture.watched.join("fifo.yaml");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    symlink(&fifo, fixture.watched.join("link.yaml")).unwrap();
    let large = fs::File::create(fixture.watched.join("large.yaml")).unwrap();
    large.set_len(super::super::resource_files::MAX_FILE_BYTES + 1).unwrap();
    fixture.write("a.json", &["a"]);
    let scan = fixture.until(&["a"], &["fifo.yaml", "large.yaml", "link.yaml"]).await;
    assert!(scan.failures[0].message.contains("not a regular file"), "{:?}", scan.failures);
    assert!(scan.failures[1].message.contains("64 MiB"), "{:?}", scan.failures);
}

#[tokio::test]
async fn the_directory_may_go_and_come_back_as_another() {
    let mut fixture = Fixture::new();
    fixture.write("a.json", &["a"]);
    fixture.until(&["a"], &[]).await;

    let watched = fixture.watched.display().to_string();
    fs::rename(&fixture.watched, fixture.root.path().join("old")).unwrap();
    fixture.until(&["a"], &[&watched]).await;

    fs::create_dir(fixture.root.path().join("next")).unwrap();
    write(&fixture.root.path().join("next/b.json"), &["b"]);
    fs::rename(fixture.root.path().join("next"), &fixture.watched).unwrap();
    fixture.until(&["b"], &[]).await;

    fixture.write("c.json", &["c"]);
    fixture.until(&["b", "c"], &[]).await;
}

#[tokio::test]
async fn a_link_to_the_directory_may_be_moved() {
    let mut fixture = Fixture::new();
    let target = fixture.root.path().join("target");
    fs::create_dir(&target).unwrap();
    write(&target.join("b.json"), &["b"]);
    fixture.write("a.json", &["a"]);
    let link = fixture.root.path().join("link");
    symlink(&fixture.watched, &link).unwrap();
    fixture.watched = link.clone();
    fixture.until(&["a"], &[]).await;
    symlink(&target, fixture.root.path().join("link_tmp")).unwrap();
    fs::rename(fixture.root.path().join("link_tmp"), &link).unwrap();
    fixture.until(&["b"], &[]).await;
}

#[tokio::test]
async fn a_file_behind_a_link_is_followed() {
    let mut fixture = Fixture::new();
    let outside = fixture.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    write(&outside.join("a.json"), &["a"]);
    symlink(outside.join("a.json"), fixture.watched.join("a.json")).unwrap();
    fixture.until(&["a"], &[]).await;
    write(&outside.join("a.json"), &["b"]);
    fixture.until(&["b"], &[]).await;
}

#[tokio::test]
async fn giving_up_on_next_loses_nothing() {
    let mut fixture = Fixture::new();
    fixture.until(&[], &[]).await;
    fixture.write("a.json", &["a"]);
    let directory = fixture.directory.as_mut().unwrap();
    let impatient = async {
        loop {
            // Ready or not, each call is dropped after one look.
            if let Ok(scan) = timeout(Duration::ZERO, directory.next()).await
                && scan.resources.len() == 1
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, impatient).await.unwrap();
}

#[tokio::test]
async fn touching_a_file_is_no_news() {
    let mut fixture = Fixture::new();
    fixture.write("a.json", &["a"]);
    fixture.until(&["a"], &[]).await;
    // First equal bytes, then an equal meaning, then something new: the first state to come is already the last.
    let replace = |file: &str, content: String| {
        fs::write(fixture.root.path().join("tmp"), content).unwrap();
        fs::rename(fixture.root.path().join("tmp"), fixture.watched.join(file)).unwrap();
    };
    replace("a.json", response(&[cluster("a")]).to_string());
    replace("a.json", format!("  {}\n", response(&[cluster("a")])));
    replace("b.json", response(&[cluster("b")]).to_string());
    let directory = fixture.directory.as_mut().unwrap();
    let next = timeout(DEADLINE, directory.next()).await.unwrap();
    assert_eq!(next.resources.len(), 2, "{next:#?}");
}

#[tokio::test]
async fn the_examples_of_the_quick_start_are_good() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/resources");
    let mut directory = Directory::open(examples).unwrap();
    let scan = timeout(DEADLINE, directory.next()).await.unwrap();
    assert_eq!(scan.failures, []);
    let names: Vec<_> = scan.resources.iter().map(|of| of.name().as_str()).collect();
    assert_eq!(names, ["backend", "website", "backend", "ingress", "ingress"]);
}
