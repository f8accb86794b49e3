//! The files of a set replaced in the ways that operators and Kubernetes do it.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;

/// Two files that go together when they hold the same.
fn pair(reloader: &Reloader, folder: &Path) -> Result<Reloaded<String>, LoadError> {
    let paths = ["a", "b"].map(|name| folder.join(name));
    let [a, b] = paths.clone();
    reloader.add("pair", paths.to_vec(), move |files| {
        let text = |path: &Path| Ok::<_, LoadError>(String::from_utf8_lossy(files.bytes(path)?).into_owned());
        let (one, other) = (text(&a)?, text(&b)?);
        if one != other {
            return Err(LoadError::unusable(&b, format!("{one} is not {other}")));
        }
        Ok(Loaded { value: one, facts: Vec::new() })
    })
}

fn write(folder: &Path, text: &str) {
    fs::create_dir_all(folder).unwrap();
    for name in ["a", "b"] {
        let new = folder.join(format!(".{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, folder.join(name)).unwrap();
    }
}

fn wait_for(value: &Reloaded<String>, expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while value.load().as_str() != expected {
        assert!(Instant::now() < deadline, "{} instead of {expected}", value.load());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn files_replaced_one_by_one_are_one_change() {
    let home = TempDir::new().unwrap();
    write(home.path(), "1");
    let reloader = Reloader::default();
    let value = pair(&reloader, home.path()).unwrap();
    for turn in 2..6 {
        write(home.path(), &turn.to_string());
        wait_for(&value, &turn.to_string());
    }
}

#[test]
fn a_bad_set_changes_nothing_until_it_is_mended() {
    let home = TempDir::new().unwrap();
    write(home.path(), "1");
    let reloader = Reloader::default();
    let value = pair(&reloader, home.path()).unwrap();

    fs::write(home.path().join("a"), "2").unwrap();
    reloader.reload_now();
    assert_eq!(value.load().as_str(), "1");
    fs::remove_file(home.path().join("b")).unwrap();
    reloader.reload_now();
    assert_eq!(value.load().as_str(), "1");

    write(home.path(), "2");
    wait_for(&value, "2");
}

#[test]
fn files_that_nobody_holds_are_forgotten_and_the_thread_ends() {
    let home = TempDir::new().unwrap();
    write(home.path(), "1");
    let reloader = Reloader::default();
    let value = pair(&reloader, home.path()).unwrap();
    assert!(
        reloader
            .add("none", vec![home.path().join("none")], |_| Ok(Loaded { value: (), facts: Vec::new() }))
            .is_err()
    );
    let shared = Arc::downgrade(&reloader.0);
    drop(value);
    reloader.reload_now();
    assert!(reloader.0.lock().all.is_empty());
    drop(reloader);
    let deadline = Instant::now() + Duration::from_secs(20);
    while shared.strong_count() > 0 {
        assert!(Instant::now() < deadline, "the thread holds on");
        thread::sleep(Duration::from_millis(10));
    }
}
