//! A small disk, which can be full or read-only.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk in memory, gone with the value. `None` where the test may not mount one.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one with these options of tmpfs.
    pub fn mount(at: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("SKIPPED: a disk can be mounted by root only");
        None
    }

    /// Changes its options.
    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let status = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Files that are open there stay with the process that has them.
        _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
