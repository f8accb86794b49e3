//! Child processes that write their own log, and do not outlive the test.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
    time::Duration,
};

use super::poll::eventually;

/// `setpriv` (util-linux) lets the kernel kill a child when the test that started it is killed itself.
static DIES_WITH_PARENT: LazyLock<bool> =
    LazyLock::new(|| Command::new("setpriv").arg("--version").output().is_ok());

/// A running program; killed when dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program`, with stderr in `NAME.log` under `dir` and stdout in `NAME.out`.
    pub(crate) fn start(name: &str, dir: &Path, program: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let log = dir.join(format!("{name}.log"));
        let append = |path: &Path| File::options().create(true).append(true).open(path).unwrap();
        let mut command = if *DIES_WITH_PARENT {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let child = command
            .args(args)
            .envs(env.iter().copied())
            // Held open as long as `child` lives: the programs of the test bed exit when it closes.
            .stdin(Stdio::piped())
            .stdout(append(&dir.join(format!("{name}.out"))))
            .stderr(append(&log))
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        Self { name: name.to_owned(), child, log }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The complete lines on stdout so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut reader = BufReader::new(File::open(self.log.with_extension("out")).unwrap());
        let mut lines = Vec::new();
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
            lines.push(line.trim_end().to_owned());
            line.clear();
        }
        lines
    }

    /// The line of JSON a program of the test bed announces itself with; `before` lines came earlier.
    pub(crate) fn announcement(&self, before: usize) -> serde_json::Value {
        let line = eventually(Duration::from_secs(20), &format!("{} announces itself", self.name), || {
            self.lines().get(before).cloned().ok_or_else(|| self.log())
        });
        serde_json::from_str(&line).unwrap()
    }

    /// Asks the program to end, and waits until it has.
    pub(crate) fn terminate(mut self, patience: Duration) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        eventually(patience, &format!("{} ends after SIGTERM", self.name), || {
            if self.is_running() { Err("it still runs".to_owned()) } else { Ok(()) }
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already, which is as good.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
