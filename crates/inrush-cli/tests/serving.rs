//! Weights that are replaced while calls run: every answer comes wholly from one set.

use inrush_base::Result;
use inrush_cli::args::TargetArgs;
use inrush_cli::session;
use inrush_cli::{io, run::random_inputs};
use inrush_runtime::cache::Cache;
use inrush_runtime::{Model, Names, Session, Tensor, Value, WeightView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Swaps of the test; `INRUSH_SWAPS` asks for more.
const SWAPS: usize = 200;
const CALLERS: usize = 8;

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/digits")
        .join(name)
}

fn open(threads: usize) -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(folder.path().to_path_buf());
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(threads),
    };
    let opened = session::open(&digits("digits.pt2"), &target, &cache, true);
    opened.expect("the digits").model
}

/// Returns all weights of a session, each float multiplied by `factor`.
fn scaled(session: &Session, factor: f32) -> BTreeMap<String, Tensor> {
    let model = session.model();
    let scale = |spec: inrush_runtime::WeightSpec| {
        let t = model.weight(&spec.name).expect("a weight of the model");
        let mut bytes = t.to_bytes();
        if t.dtype == inrush_base::DType::F32 {
            for word in bytes.chunks_mut(4) {
                let x = f32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                word.copy_from_slice(&(x * factor).to_ne_bytes());
            }
        }
        let t = Tensor::from_bytes(t.dtype, t.sizes.clone(), &bytes).expect("a tensor");
        (spec.name, t)
    };
    session.weights().into_iter().map(scale).collect()
}

fn views(weights: &BTreeMap<String, Tensor>) -> Vec<(&str, WeightView<'_>)> {
    weights
        .iter()
        .map(|(n, t)| (n.as_str(), t.view()))
        .collect()
}

fn answer(session: &Session, inputs: &[Value]) -> Result<Vec<u8>> {
    match session.run(inputs)?.swap_remove(0) {
        Value::Tensor(t) => Ok(t.to_bytes()),
        _ => panic!("the digits' output is a tensor"),
    }
}

#[test]
fn answers_under_swaps_come_from_one_set() {
    let swaps = std::env::var("INRUSH_SWAPS").map_or(SWAPS, |n| n.parse().expect("a number"));
    let session = Session::new(open(1));
    let inputs = random_inputs(&session.model(), &[3]).expect("inputs");
    let sets: Vec<BTreeMap<String, Tensor>> = [1.0, 0.75, 1.25]
        .map(|f| scaled(&session, f))
        .into_iter()
        .collect();
    let answers: Vec<Vec<u8>> = (sets.iter())
        .map(|s| {
            session
                .update_weights(&views(s), Names::All)
                .expect("an update");
            session.swap_weights().expect("a swap");
            answer(&session, &inputs).expect("an answer")
        })
        .collect();
    assert!(
        answers[0] != answers[1] && answers[1] != answers[2],
        "the sets do not differ"
    );
    let over = AtomicBool::new(false);
    let (calls, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|s| {
        for _ in 0..CALLERS {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let got = answer(&session, &inputs).expect("an answer");
                    calls.fetch_add(1, Ordering::Relaxed);
                    if !answers.contains(&got) {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for k in 0..swaps {
            session
                .update_weights(&views(&sets[k % 3]), Names::All)
                .expect("an update");
            session.swap_weights().expect("a swap");
        }
        over.store(true, Ordering::Relaxed);
    });
    let (calls, wrong) = (calls.into_inner(), wrong.into_inner());
    println!("{swaps} swaps, {calls} calls, {wrong} from no set");
    assert!(calls > 0);
    assert_eq!(wrong, 0, "of {calls} answers");
}

#[test]
fn updates_add_up_until_they_are_swapped_in() {
    let session = Session::new(open(2));
    let images = io::read(&digits("digits.inputs.safetensors")).expect("images");
    let inputs = [Value::Tensor(images["0"].clone())];
    let first = answer(&session, &inputs).expect("an answer");
    let changed = scaled(&session, 0.5);
    let names: Vec<&String> = changed.keys().collect();
    let half = |range: std::ops::Range<usize>| -> Vec<(&str, WeightView<'_>)> {
        names[range]
            .iter()
            .map(|n| (n.as_str(), changed[*n].view()))
            .collect()
    };
    let middle = names.len() / 2;
    session
        .update_weights(&half(0..middle), Names::Some)
        .expect("an update");
    assert_eq!(
        answer(&session, &inputs).expect("an answer"),
        first,
        "not swapped yet"
    );
    session
        .update_weights(&half(middle..names.len()), Names::Some)
        .expect("an update");
    session.swap_weights().expect("a swap");
    let both = answer(&session, &inputs).expect("an answer");
    assert_ne!(both, first);

    // The same set at once gives the same bits, and the weights of the archive the first ones.
    let other = Session::new(open(2));
    other
        .update_weights(&views(&changed), Names::All)
        .expect("an update");
    other.swap_weights().expect("a swap");
    assert_eq!(answer(&other, &inputs).expect("an answer"), both);
    other
        .update_weights(&views(&scaled(&other, 2.0)), Names::All)
        .expect("an update");
    other.swap_weights().expect("a swap");
    assert_eq!(answer(&other, &inputs).expect("an answer"), first);

    session
        .update_weights(&half(0..1), Names::Some)
        .expect("an update");
    session.discard_update();
    assert!(session.swap_weights().is_err());
}

#[test]
fn outputs_go_to_the_memory_that_is_given() {
    let model = open(2);
    let inputs = random_inputs(&model, &[5]).expect("inputs");
    let Value::Tensor(want) = model.run(&inputs).expect("a call").swap_remove(0) else {
        panic!("the digits' output is a tensor");
    };
    // Row-major and aligned; with gaps between rows; at an odd place.
    for (strides, offset) in [(vec![10, 1], 0), (vec![16, 1], 0), (vec![1, 5], 3)] {
        let mut t = Tensor::zeros(want.dtype, vec![20, 10], vec![20, 1]).expect("memory");
        (t.sizes, t.strides, t.offset) = (want.sizes.clone(), strides, offset);
        // SAFETY: the storage is this call's, and large enough for each layout.
        unsafe { model.run_into(&inputs, &[Value::Tensor(t.clone())]) }.expect("a call");
        assert_eq!(
            t.to_bytes(),
            want.to_bytes(),
            "{:?} from {offset}",
            t.strides
        );
    }
}
