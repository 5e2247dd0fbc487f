//! The stages of a model for a GPU, as `inrush inspect` shows them: block programs and Triton source. No GPU is needed.

use std::path::Path;
use std::process::{Command, Output};

/// Inspects the digits model.
fn inspect(args: &[&str]) -> Output {
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let model = repo.unwrap().join("examples/digits/digits.pt2");
    Command::new(env!("CARGO_BIN_EXE_inrush"))
        .arg("inspect")
        .arg(model)
        .args(args)
        .output()
        .unwrap()
}

/// Returns the text of a stage for a GPU.
fn stage(gpu: &str, stage: &str) -> String {
    let out = inspect(&["--target", gpu, "--stage", stage]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{gpu} {stage}: {err}");
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the lines that begin with `head`, without it.
fn lines<'t>(text: &'t str, head: &str) -> Vec<&'t str> {
    text.lines().filter_map(|l| l.strip_prefix(head)).collect()
}

/// Returns the number that stands between `head` and a space or the end.
fn number(line: &str, head: &str) -> usize {
    let rest = line.split_once(head).map_or("", |p| p.1);
    let digits = rest.split([' ', ':']).next().unwrap_or_default();
    (digits.parse()).unwrap_or_else(|_| panic!("no number after `{head}` in `{line}`"))
}

#[test]
fn block_programs_of_a_model_read_back() {
    for gpu in ["h100", "mi300x"] {
        let text = stage(gpu, "tile");
        let (exprs, blocks) = inrush_kernel::block::text::parse(&text).unwrap();
        for b in &blocks {
            inrush_kernel::block::verify(&exprs, b, None, &[]).unwrap();
        }
        assert!(blocks.iter().any(|b| b.product.is_some()), "{text}");
        assert!(blocks.iter().any(|b| b.reduced().is_some()), "{text}");
        let said = text
            .lines()
            .filter(|l| !l.starts_with(";;") && !l.is_empty());
        let said: String = said.map(|l| format!("{l}\n")).collect();
        assert_eq!(inrush_kernel::block::text::print_all(&exprs, &blocks), said);
        // Every block has its number, and every block is launched.
        let numbers = lines(&text, ";; block ");
        let all: Vec<String> = (0..blocks.len()).map(|n| n.to_string()).collect();
        assert_eq!(numbers, all);
        let mut launched = vec![false; blocks.len()];
        for l in [";; at load: ", ";; launch: "]
            .map(|h| lines(&text, h))
            .concat()
        {
            l.split("; ")
                .for_each(|p| launched[number(p, "block ")] = true);
        }
        assert!(launched.iter().all(|l| *l), "{gpu}: {launched:?}");
    }
}

#[test]
fn sources_of_a_model_are_shown_with_their_constants() {
    for gpu in ["h100", "mi300x"] {
        let text = stage(gpu, "emit");
        let titles = lines(&text, "# kernel ");
        assert!(titles.len() > 10, "{text}");
        assert!(titles[0].starts_with("0: XBLOCK="), "{}", titles[0]);
        for (n, part) in text.split("# kernel ").skip(1).enumerate() {
            let (title, source) = part.split_once('\n').unwrap_or_default();
            assert_eq!(number(&format!("kernel {title}"), "kernel "), n);
            assert!(
                title.contains(" warp") && title.contains(" stage"),
                "{title}"
            );
            assert!(title.contains(", programs "), "{title}");
            assert!(source.starts_with("import triton\n"), "{source}");
            // The last function is the kernel; its operators have their Python line.
            let kernel = source.rsplit("@triton.jit").next().unwrap_or_default();
            assert!(
                kernel.contains("def ") && kernel.contains("tl.store("),
                "{source}"
            );
            assert!(
                source.contains("# aten.") && source.contains("train.py:"),
                "{source}"
            );
        }
        // As many launches as stage tile has, and every kernel is launched.
        let heads = ["at load: ", "launch: "];
        let launches = heads.map(|h| lines(&text, &format!("# {h}"))).concat();
        let tiled = stage(gpu, "tile");
        let blocks = heads.map(|h| lines(&tiled, &format!(";; {h}"))).concat();
        assert_eq!(launches.len(), blocks.len());
        let mut launched = vec![false; titles.len()];
        for l in &launches {
            launched[number(l, "kernel ")] = true;
        }
        assert!(launched.iter().all(|l| *l), "{gpu}: {launched:?}");
    }
}

#[test]
fn unknown_stages_and_targets_are_named() {
    let cases: [(&[&str], &[&str]); 4] = [
        (
            &["--target", "h100", "--stage", "tiles"],
            &["unknown stage `tiles`", "tile, emit"],
        ),
        (
            &["--target", "h1000", "--stage", "tile"],
            &["unknown target `h1000`", "h100", "avx2"],
        ),
        // A stage that needs no target is still refused one that does not exist.
        (
            &["--target", "h1000", "--stage", "import"],
            &["unknown target `h1000`"],
        ),
        (
            &["--target", "cuda:0", "--stage", "emit"],
            &["unknown target `cuda:0`", "h100"],
        ),
    ];
    for (args, words) in cases {
        let out = inspect(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        assert!(out.stdout.is_empty(), "{args:?}");
        for w in words {
            assert!(err.contains(w), "{args:?}: `{w}` is not in: {err}");
        }
    }
}
