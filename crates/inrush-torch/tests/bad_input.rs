//! Archives that are damaged, mistyped, newer or of another kind: each a message that says what and where.

mod common;
use common::*;

/// Each refusal must contain every part.
fn says(bytes: Vec<u8>, parts: &[&str]) {
    let e = refusal(bytes);
    for p in parts {
        assert!(e.contains(p), "no `{p}` in: {e}");
    }
}

#[test]
fn files_of_another_kind() {
    says(Vec::new(), &["not a zip archive"]);
    says(b"hello".to_vec(), &["not a zip archive"]);
    says(
        std::fs::read(path("checkpoint.pt")).unwrap(),
        &["checkpoint of torch.save"],
    );
    let old = (
        "serialized_exported_program.json".to_string(),
        b"{}".to_vec(),
    );
    says(pack(&[old]), &["before 2.6"]);
    says(
        pack(&[("m/constants.pkl".into(), vec![])]),
        &["TorchScript"],
    );
    says(pack(&[("m/readme".into(), vec![])]), &["archive_format"]);
    let e = inrush_torch::open(&path("nowhere.pt2"))
        .err()
        .expect("no such file")
        .to_string();
    assert!(e.contains("nowhere.pt2"), "{e}");
}

#[test]
fn containers_of_another_version() {
    says(
        edit("data", "archive_version", |_| b"1".to_vec()),
        &["version 1"],
    );
    says(
        edit("data", "archive_format", |_| b"pt3".to_vec()),
        &["format `pt3`"],
    );
    says(
        edit("data", "byteorder", |_| b"big".to_vec()),
        &["little-endian"],
    );
    let files: Vec<_> = unpack(&bytes("data"))
        .into_iter()
        .filter(|f| !f.0.contains("models/"))
        .collect();
    says(pack(&files), &["no exported program"]);
    let mut files = unpack(&bytes("weights"));
    files.retain(|f| !f.0.ends_with("weights_config.json"));
    files.push(("weights/data/weights/model.pt".into(), vec![]));
    says(pack(&files), &["are a pickle", "model.pt"]);
}

#[test]
fn truncated_and_damaged_files() {
    let whole = bytes("weights");
    for len in [whole.len() - 1, whole.len() - 30, whole.len() / 2, 100] {
        says(whole[..len].to_vec(), &["cut off"]);
    }
    let mut flipped = whole.clone();
    let at = whole
        .windows(12)
        .position(|w| w == b"graph_module")
        .unwrap();
    flipped[at] ^= 1;
    says(flipped, &["weights/models/model.json", "checksum"]);
    // Weights are not read when a model is opened, but can be checked.
    let mut flipped = whole.clone();
    let m = import(whole.clone()).unwrap();
    let at = m.weights.get("first").unwrap().storage.start;
    flipped[at] ^= 1;
    let e = import(flipped)
        .unwrap()
        .weights
        .check()
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("data/weights/weight_") && e.contains("checksum"),
        "{e}"
    );
    let twice = unpack(&whole);
    says(pack(&[&twice[..], &twice[..1]].concat()), &["twice"]);
}

#[test]
fn newer_schemas() {
    says(
        replace("data", r#""major": 8"#, r#""major": 9"#),
        &["schema 9.17", "torch 2.11", "schema 8"],
    );
    // Unknown keys are skipped, also in newer minors; unknown kinds are named.
    import(replace(
        "data",
        r#""minor": 17"#,
        r#""minor": 99, "more": [1]"#,
    ))
    .unwrap();
    let mut json = replace(
        "writes",
        r#""user_input": {"arg": {"as_tensor""#,
        r#""user_input": {"arg": {"as_cloud""#,
    );
    says(
        json.clone(),
        &["unknown kind", "`as_cloud`", "writes/models/model.json"],
    );
    json = edit("writes", "models/model.json", |t| {
        String::from_utf8(t)
            .unwrap()
            .replace(r#""minor": 17"#, r#""minor": 30"#)
            .replace("as_ints", "as_clouds")
            .into_bytes()
    });
    says(
        json,
        &[
            "schema 8.30 is newer",
            "`as_clouds`",
            "argument `dim`",
            "aten.sum.dim_IntList",
        ],
    );
    says(
        replace("writes", r#"{"user_input""#, r#"{"dream_input""#),
        &["unknown kind of input: `dream_input`"],
    );
    // A major version that changed the graph's shape is still reported as a version.
    let both = edit("data", "models/model.json", |t| {
        String::from_utf8(t)
            .unwrap()
            .replace(r#""major": 8"#, r#""major": 12"#)
            .replace(r#""nodes""#, r#""knots""#)
            .into_bytes()
    });
    says(both, &["schema 12.17"]);
}

#[test]
fn mistyped_programs() {
    says(
        replace("data", r#""nodes": ["#, r#""nodes": [7, "#),
        &["data/models/model.json", "column", "near"],
    );
    says(
        replace("data", r#""kind": 1"#, r#""kind": "one""#),
        &["invalid type", "in or after a call of `torch.ops."],
    );
    says(
        replace(
            "data",
            r#"{"as_int": 1}"#,
            r#"{"as_int": 1, "as_bool": true}"#,
        ),
        &["two keys"],
    );
    says(
        replace("data", r#""graph_module""#, r#""graph_modulo""#),
        &["graph_module"],
    );
    says(
        replace("data", r#"Symbol('u0', integer=True)"#, "Symbol(u0)"),
        &["Symbol(u0)"],
    );
    says(
        edit("data", "models/model.json", |_| b"{".to_vec()),
        &["EOF"],
    );
    says(
        edit("data", "models/model.json", |_| b"[".repeat(100_000)),
        &["data/models/model.json"],
    );
}

#[test]
fn graphs_that_make_no_sense() {
    // The second use of a name reads what nobody has defined.
    says(
        replace(
            "foreign",
            r#"{"as_tensor": {"name": "add"}}, "kind""#,
            r#"{"as_tensor": {"name": "later"}}, "kind""#,
        ),
        &[
            "`later` is used before it is defined",
            "nowhere.twice.default",
            "node `twice`",
            "generate.py:",
        ],
    );
    says(
        replace(
            "foreign",
            r#""outputs": [{"as_tensor": {"name": "twice_1"}}], "metadata""#,
            r#""outputs": [{"as_tensor": {"name": "add"}}], "metadata""#,
        ),
        &["`add` is defined twice"],
    );
    says(
        replace("weights", r#""dtype": 7"#, r#""dtype": 77"#),
        &["dtype", "77"],
    );
    says(
        replace(
            "weights",
            r#""buffer_name": "count""#,
            r#""buffer_name": "amount""#,
        ),
        &["`amount`"],
    );
    says(
        replace("sizes", r#""min_val": 2"#, r#""min_val": 2000"#),
        &["range", "empty"],
    );
    let huge = r#""sizes": [{"as_int": 9000000000000000000}"#;
    says(
        replace("foreign", r#""sizes": [{"as_int": 3}"#, huge),
        &["too large"],
    );
    says(
        replace(
            "foreign",
            r#""sizes": [{"as_int": 3}"#,
            r#""sizes": [{"as_int": -3}"#,
        ),
        &["negative"],
    );
}

#[test]
fn payloads_that_do_not_fit() {
    let config = |from: &str, to: &str| {
        edit("weights", "model_weights_config.json", |t| {
            let t = String::from_utf8(t).unwrap();
            assert!(t.contains(from), "{t}");
            t.replacen(from, to, 1).into_bytes()
        })
    };
    says(
        config(
            r#""storage_offset": {"as_int": 0}"#,
            r#""storage_offset": {"as_int": 1}"#,
        ),
        &["need 28", "weights_config.json"],
    );
    says(
        config(
            r#""storage_offset": {"as_int": 0}"#,
            r#""storage_offset": {"as_int": 9223372036854775807}"#,
        ),
        &["no tensor"],
    );
    says(
        config(r#""use_pickle": false"#, r#""use_pickle": true"#),
        &["pickled"],
    );
    says(config("weight_0", "weight_77"), &["weight_77"]);
    says(config("weight_0", "../model.json"), &["holds no"]);
    says(
        edit("weights", "weights/weight_0", |mut b| {
            b.truncate(4);
            b
        }),
        &["4 bytes where", "need 24"],
    );
}

#[test]
fn sample_inputs_may_be_bad() {
    for change in [b"nonsense".to_vec(), Vec::new()] {
        let m = import(edit("sizes", "sample_inputs/model.pt", |_| change)).unwrap();
        assert!(m.samples.unwrap_err().contains("model.pt"));
    }
    let mut files = unpack(&bytes("sizes"));
    files.retain(|f| !f.0.contains("sample_inputs"));
    assert!(import(pack(&files)).unwrap().samples.is_err());
}
