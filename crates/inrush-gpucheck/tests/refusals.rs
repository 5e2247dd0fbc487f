//! Every operator case is emitted for a GPU: what the generator refuses would be called instead of fused, so the list of
//! refusals only shrinks.
//!
//! The cases are written by `python/gen_op_cases.py`; `INRUSH_OP_CASES` names their folder.

use inrush_gpucheck::{Writer, operator_cases, target};

/// Cases in which a kernel is refused, and what the refusal says.
const REFUSED: &[(&str, &str)] = &[];

#[test]
fn nothing_that_lowers_is_refused() {
    let Some(folder) = std::env::var_os("INRUSH_OP_CASES") else {
        eprintln!("INRUSH_OP_CASES is not set: no operator cases to emit");
        return;
    };
    let (_, caps) = target("cuda:h100").unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(out.path(), &caps).unwrap();
    operator_cases(folder.as_ref(), "", &mut writer).unwrap();
    let stages = ["fuse: ", "tile: ", "emit: "];
    let ours = |why: &str| stages.iter().any(|s| why.starts_with(s));
    let refused: Vec<(String, String)> = (writer.refusals().into_iter())
        .filter(|(_, why)| ours(why))
        .collect();
    let (programs, kernels) = writer.finish().unwrap();
    assert!(
        programs > 200 && kernels > 1000,
        "{programs} cases, {kernels} kernels"
    );
    println!(
        "{kernels} kernels of {programs} cases, {} refused",
        refused.len()
    );
    for (case, why) in &refused {
        println!("{case}: {why}");
        let known = REFUSED.iter().any(|(c, w)| c == case && why.contains(w));
        assert!(known, "{case}: {why}");
    }
    for (case, _) in REFUSED {
        assert!(
            refused.iter().any(|(c, _)| c == case),
            "{case} is refused no more"
        );
    }
}
