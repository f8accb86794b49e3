//! `deltafan completions`, by the real binary.

use std::process::Command;

use deltafan_test_support::process::program;

/// Words that bash offers for the last of these.
fn offered(words: &str) -> Vec<String> {
    let script = r#"
        source <("$0" completions bash)
        COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _deltafan deltafan "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash").args(["-c", script]).arg(program()).arg(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_options_and_values() {
    assert_eq!(offered("deltafan cli"), ["clients"]);
    assert_eq!(offered("deltafan clients --as"), ["--asks-for"]);
    assert_eq!(offered("deltafan clients --state s"), ["synced"]);
    assert_eq!(offered("deltafan resources -o y"), ["yaml"]);
    assert_eq!(offered("deltafan rollout rest"), ["restore"]);
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = Command::new(program()).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        for word in ["serve", "check", "get", "clients", "nacks", "resources", "status", "asks-for"] {
            assert!(output.status.success() && script.contains(word), "{shell} does not know {word}");
        }
    }
}
