//! `snapshot`: resources on disk, from which the relay starts while its control plane is away.

use std::path::PathBuf;

use super::mapping::Mapping;
use super::notation::{Flag, Optional, Text};
use super::section::section;

section! {
    /// Resources on disk.
    #[derive(Eq)]
    pub struct Snapshot {
        /// A folder for this relay alone, which is made if it is not there. Default: nothing is kept on disk.
        #[key(Optional<Text>, example = "/var/lib/deltafan")]
        pub path: Option<PathBuf>,
        /// Whether Secrets are kept too. They are not encrypted: the file is for its owner alone (mode 0600).
        #[key(Flag, default = false)]
        pub secrets: bool,
        /// Whether a relay that has loaded resources is ready before its control plane has answered.
        #[key(Flag, default = true)]
        pub ready: bool,
    }
}

/// A directory is read again at each start.
pub(super) fn check(root: &Mapping<'_>) {
    let upstream = root.section("upstream");
    let snapshot = root.section("snapshot");
    if upstream.has("directory") && snapshot.has("path") {
        snapshot.wrong_here(
            "path",
            "is of no use with `upstream.directory`, which is read at each start; leave it out",
        );
    }
}
