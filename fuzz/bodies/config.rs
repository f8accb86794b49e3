//! Configurations: what is accepted reads back equal when printed, and what is refused is told in bounded, plain text.

use deltafan::config::Config;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text, "/etc/deltafan/f.yaml") {
        Ok(config) => {
            let printed = config.to_string();
            let again = Config::parse(&printed, "/elsewhere/g.yaml")
                .unwrap_or_else(|error| panic!("{error}\nof what was printed:\n{printed}"));
            assert_eq!(again, config, "{printed}");
            assert_eq!(again.to_string(), printed);
        }
        Err(errors) => {
            assert!((1..=100).contains(&errors.problems().len()));
            for problem in errors.problems() {
                let message = &problem.message;
                assert!(!message.chars().any(char::is_control), "{message:?}");
                assert!(!message.is_empty() && message.len() < 4000, "{} bytes: {message}", message.len());
                let lines = text.split(['\n', '\r']).count();
                assert!(problem.line.is_none_or(|line| line >= 1 && line <= lines + 1));
            }
        }
    }
}
