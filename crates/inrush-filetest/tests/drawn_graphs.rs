//! The command `drawn-graphs`: what it answers to its options, and that small runs on a GPU's level agree.

use std::process::{Command, Output};

fn drawn(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_drawn-graphs"))
        .args(args)
        .output()
        .expect("the command starts")
}

/// Returns what the command printed, if it ended with this code.
fn says(args: &[&str], code: i32) -> String {
    let out = drawn(args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    text
}

#[test]
fn help_is_no_error() {
    for name in ["--help", "-h"] {
        assert!(says(&[name], 0).contains("--family"));
    }
}

#[test]
fn an_unknown_family_lists_all() {
    let text = says(&["--family", "nonsense", "--count", "1"], 2);
    for words in ["`nonsense`", "convolution", "list of tensors"] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
}

#[test]
fn unknown_levels_and_options_are_named() {
    assert!(says(&["--level", "h1000"], 2).contains("h1000"));
    assert!(says(&["--levels", "h100"], 2).contains("unknown option --levels"));
}

#[test]
fn families_that_aim_at_a_strategy_take_it() {
    let folder = format!("{}/drawn", env!("CARGO_TARGET_TMPDIR"));
    let cases: [(&str, &[&str]); 4] = [
        ("turned tile", &["block: tile of two axes"]),
        ("list of tensors", &["block: lists of tensors in a launch"]),
        ("norm between products", &["block: barriers"]),
        (
            "long rows",
            &[
                "block: mean and variance in one loop",
                "fuse: split variances and softmaxes in one pass over memory",
            ],
        ),
    ];
    for (family, ways) in cases {
        let args = ["--level", "h100", "--family", family, "--count", "16"];
        let text = says(&[&args[..], &["--seed", "1", "--out", &folder]].concat(), 0);
        for way in ways {
            let line = (text.lines().find(|l| l.ends_with(way))).unwrap_or_default();
            let count = line.split_whitespace().next().unwrap_or_default();
            let taken = count.parse::<u64>().is_ok_and(|n| n > 0);
            assert!(taken, "{family}, {way}: {text}");
        }
    }
}
