//! Checks the subjects of commits: `scope: imperative`, short enough for one line of a log.
//!
//! Older commits have other subjects, so the check begins at a commit. A shallow clone may lack it,
//! and then nothing is checked.

use crate::root;
use std::process::Command;

/// The last commit whose subject is not checked, and those before it.
const SINCE: &str = "1511dbc";

/// Most characters of a subject.
const LONGEST: usize = 72;

/// Checks the commits since [`SINCE`]. Gives one line for each mistake; none where this is no clone with that history.
pub(crate) fn check() -> Result<Vec<String>, String> {
    let range = format!("{SINCE}..HEAD");
    let out = Command::new("git")
        .args(["log", "--no-merges", "--format=%h %s", &range])
        .current_dir(root())
        .output();
    let Some(out) = out.ok().filter(|o| o.status.success()) else {
        eprintln!("commit subjects are not checked: git does not know {SINCE} here");
        return Ok(Vec::new());
    };
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(mistake).collect())
}

/// Says what is wrong with a line `hash subject`.
fn mistake(line: &str) -> Option<String> {
    let (_, subject) = line.split_once(' ')?;
    let length = subject.chars().count();
    if length > LONGEST {
        return Some(format!("{line}: {length} characters, at most {LONGEST}"));
    }
    let word = |w: &str| {
        !w.is_empty()
            && w.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let scoped = subject.split_once(": ");
    let good =
        scoped.is_some_and(|(scope, rest)| scope.split(", ").all(word) && !rest.trim().is_empty());
    (!good).then(|| format!("{line}: a subject is `scope: imperative`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_a_scope_and_fit() {
        assert_eq!(mistake("1234567 aten: give zeros as sizes"), None);
        assert_eq!(mistake("1234567 aten, inrush-c: round once"), None);
        assert!(mistake("1234567 Round once").is_some());
        assert!(mistake("1234567 Aten: round once").is_some());
        assert!(mistake(&format!("1234567 aten: {}", "x".repeat(67))).is_some());
    }
}
