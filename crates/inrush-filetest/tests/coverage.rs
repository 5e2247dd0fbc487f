//! Nothing that can be said goes untested: every reason to refuse a fusion stands in an expectation of a file test.

use inrush_filetest::Document;
use inrush_sched::Reason;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_reason_to_refuse_a_fusion_is_tested() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let mut seen = BTreeSet::new();
    for path in inrush_filetest::files(&dir).expect("the folder `tests` is there") {
        let text = std::fs::read_to_string(path).expect("a file that was listed");
        let doc = Document::parse(&text).expect("a file test");
        let expected = doc.blocks.iter().filter(|b| b.language == "refusals");
        for line in expected.flat_map(|b| b.text.lines()) {
            let reason = line.rsplit(": ").next().and_then(Reason::parse);
            seen.extend(reason);
        }
    }
    let idle: Vec<_> = Reason::ALL.iter().filter(|r| !seen.contains(r)).collect();
    assert!(idle.is_empty(), "reasons that no file test shows: {idle:?}");
}
