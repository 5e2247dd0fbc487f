//! Graphs whose declared sizes do not fit: every operator refuses them, and none panics or allocates for them.

mod common;

use common::Random;
use inrush_aten::example::{Example, example};
use inrush_base::{Result, Scalar};
use inrush_graph::{Arg, Graph, TensorType, Type, ValueId};
use inrush_interp::{Tensor, Value, graph, knows};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `g` on inputs as it declares them, each filled with the least value of its range, or else one.
fn run(g: &Graph, ranges: &[Option<(f64, f64)>]) -> Result<Vec<Value>> {
    let inputs = (g.inputs.iter().enumerate()).map(|(k, i)| match &g.value(i.value).ty {
        Type::Tensor(t) => {
            let low = ranges.get(k).copied().flatten().map_or(1.0, |r| r.0.ceil());
            let mut v = Tensor::zeros(t.dtype, &numbers(g, &t.sizes)?)?;
            for k in 0..v.numel() {
                v.set(k, Scalar::Float(low).convert(t.dtype))?;
            }
            Ok(Value::Tensor(v))
        }
        Type::Int(e) => Ok(Value::Scalar(Scalar::Int(numbers(g, &[*e])?[0]))),
        _ => Ok(Value::Scalar(Scalar::Float(0.5))),
    });
    let inputs: Vec<Value> = inputs.collect::<Result<_>>()?;
    let known = |name: &&str| g.exprs.sym_by_name(name).is_some();
    let symbols = ["s0", "s1", "s2"].into_iter().filter(known);
    let symbols = symbols.map(|s| (s.to_string(), 3)).collect();
    graph(g, &inputs, &BTreeMap::new(), &symbols)
}

/// Sizes, every symbol as small as it may be but no less than 3.
fn numbers(g: &Graph, sizes: &[inrush_expr::Expr]) -> Result<Vec<i64>> {
    let value = |s| Some(3.max(g.exprs.sym_info(s).lower));
    sizes.iter().map(|e| g.exprs.eval(*e, &value)).collect()
}

/// `g` with other sizes of one value.
fn resized(g: &Graph, v: ValueId, sizes: &[i64]) -> Graph {
    let mut g = g.clone();
    let sizes = sizes.iter().map(|n| g.exprs.int(*n)).collect();
    if let Type::Tensor(t) = &g.values[v.index()].ty {
        let ty = TensorType::contiguous(&g.exprs, t.dtype, sizes);
        g.values[v.index()].ty = Type::Tensor(ty);
    }
    g
}

const HUGE: i64 = 1 << 40;

/// Other sizes than these: of another rank, larger, smaller, empty, huge.
fn others(sizes: &[i64]) -> Vec<Vec<i64>> {
    let mut out = vec![Vec::new(), [&[1], sizes].concat(), [sizes, &[2]].concat()];
    for d in 0..sizes.len() {
        let with = |n: i64| {
            let mut s = sizes.to_vec();
            s[d] = n;
            s
        };
        out.extend([0, 1, sizes[d] - 1, sizes[d] + 1, HUGE, i64::MAX].map(with));
        out.push([&sizes[..d], &sizes[d + 1..]].concat());
        // So large that no product of sizes fits, and without an element.
        out.push([&with(i64::MAX), [0].as_slice()].concat());
    }
    out.retain(|s| s != sizes);
    out
}

/// The sizes of each tensor of a graph.
type Tensors = Vec<(ValueId, Vec<i64>)>;

/// The examples of the operators that the interpreter knows.
fn examples() -> Vec<(&'static str, Example, Tensors)> {
    let names = inrush_aten::rows().filter(|r| !r.example.is_empty() && knows(r.name));
    names
        .map(|r| {
            let e = example(r.name).unwrap_or_else(|e| panic!("{}: {e}", r.name));
            let g = &e.graph;
            let tensors = (0..g.values.len()).map(ValueId::from_index);
            let tensors = tensors.filter_map(|v| match &g.value(v).ty {
                Type::Tensor(t) => Some((v, numbers(g, &t.sizes).expect("sizes"))),
                _ => None,
            });
            let tensors = tensors.collect();
            (r.name, e, tensors)
        })
        .collect()
}

/// The same elements in other sizes are another view, of which the interpreter takes any.
const VIEWS: &[&str] = &["view", "reshape", "flatten", "squeeze", "ravel"];

fn number(sizes: &[i64]) -> i128 {
    let product = |n: i128, s: &i64| (n * *s as i128).clamp(-1, 1 << 60);
    sizes.iter().fold(1, product)
}

/// Runs `g`, which may fail and may not panic.
fn survives(g: &Graph, ranges: &[Option<(f64, f64)>]) -> Result<()> {
    let got = catch_unwind(AssertUnwindSafe(|| run(g, ranges)));
    got.unwrap_or_else(|_| panic!("a panic\n{}", g.print()))
        .map(|_| ())
}

#[test]
fn every_operator_knows_the_sizes_of_its_results() {
    let mut tried = 0;
    for (name, e, tensors) in examples() {
        match run(&e.graph, &e.ranges) {
            Err(e) if e.message().contains("masks as indices") => continue,
            Err(e) => panic!("the example of {name}: {e}"),
            Ok(_) => {}
        }
        for (v, sizes) in tensors {
            let result = e.graph.nodes.iter().any(|n| n.outs.contains(&v));
            for other in others(&sizes) {
                let g = resized(&e.graph, v, &other);
                let ran = survives(&g, &e.ranges).is_ok();
                let view = VIEWS.iter().any(|v| name.contains(v));
                let view = view && number(&other) == number(&sizes);
                assert!(!ran || !result || view, "{name} gives no {other:?}");
                tried += 1;
            }
        }
    }
    assert!(tried > 5000, "{tried} graphs");
}

/// Returns one of several values.
fn pick<T: Clone>(r: &mut Random, of: &[T]) -> T {
    of[r.below(of.len())].clone()
}

#[test]
fn no_graph_of_other_sizes_and_arguments_panics() {
    let mut r = Random(0x1234_5678_9ABC_DEF1);
    let extremes = [
        i64::MIN,
        i64::MIN + 1,
        -HUGE,
        -2,
        -1,
        0,
        1,
        2,
        5,
        HUGE,
        i64::MAX,
    ];
    for (_, e, tensors) in examples() {
        for _ in 0..100 {
            let mut g = e.graph.clone();
            for _ in 0..pick(&mut r, &[1, 2, 3]) {
                if !tensors.is_empty() && pick(&mut r, &[true, false]) {
                    let (v, sizes) = pick(&mut r, &tensors);
                    g = resized(&g, v, &pick(&mut r, &others(&sizes)));
                }
                let n = g.exprs.int(pick(&mut r, &extremes));
                let args = &mut g.nodes[0].args;
                if args.is_empty() {
                    continue;
                }
                let k = r.below(args.len());
                match &mut args[k] {
                    Arg::Int(e) => *e = n,
                    Arg::Ints(es) if !es.is_empty() => match pick(&mut r, &[0, 1, 2, 3]) {
                        0 => es.push(n),
                        1 => _ = es.pop(),
                        _ => {
                            let k = r.below(es.len());
                            es[k] = n;
                        }
                    },
                    Arg::Values(vs) if pick(&mut r, &[true, false]) => _ = vs.pop(),
                    Arg::Value(_) if pick(&mut r, &[true, false]) => {}
                    a => {
                        *a = pick(
                            &mut r,
                            &[Arg::None, Arg::Int(n), Arg::Ints(vec![]), Arg::Bool(true)],
                        )
                    }
                }
            }
            _ = survives(&g, &e.ranges);
        }
    }
}

/// Calls whose operands do not fit each other, with a result as large as one of them.
#[test]
fn operands_that_do_not_fit_are_refused() {
    let misfits = [
        // Matrix products.
        "f32[2, 3] f32[4, 5] -> f32[2, 5] = mm.default(%0, %1)",
        "f32[2, 3] f32[] -> f32[2] = matmul.default(%0, %1)",
        "f32[4, 2, 3] f32[5, 3, 2] -> f32[4, 2, 2] = bmm.default(%0, %1)",
        "f32[1099511627776, 0] f32[0, 1099511627776] -> f32[2, 2] = mm.default(%0, %1)",
        "f32[2, 2] f32[3, 2, 2] -> f32[2, 2] = addmm.default(%1, %0, %0, 1, 1)",
        "f32[2, 3] f32[3] -> f32[2, 2] = linear.default(%0, %0, %1)",
        // Convolutions: channels, groups, rank, bias, a window larger than what it slides over.
        "f32[1, 3, 4] f32[2, 2, 2] -> f32[1, 2, 3] = conv1d.default(%0, %1, none, [1], [0], [1], 1)",
        "f32[1, 3, 4] f32[3, 1, 2] -> f32[1, 3, 3] = conv1d.default(%0, %1, none, [1], [0], [1], 0)",
        "f32[4] f32[2, 2, 2] -> f32[2, 3] = conv1d.default(%0, %1, none, [1], [0], [1], 1)",
        "f32[1, 2, 4] f32[2, 2, 2] -> f32[1, 2, 3] = conv1d.default(%0, %1, %0, [1], [0], [1], 1)",
        "f32[1, 2, 4] f32[2, 2, 6] -> f32[1, 2, 0] = conv1d.default(%0, %1, none, [1], [0], [1], 1)",
        "f32[1, 2, 4] f32[2, 2, 2] -> f32[1, 2, 3] = conv1d.default(%0, %1, none, [0], [0], [1], 1)",
        "f32[1, 3, 4] f32[2, 2, 2] -> f32[1, 2, 5] = convolution.default(%0, %1, none, [1], [0], [1], true, [0], 1)",
        // Pools.
        "f32[4] f32[] -> f32[2] = max_pool2d.default(%0, [2, 2], [], [0, 0], [1, 1], false)",
        "f32[1, 0] f32[] -> f32[1, 1] = adaptive_avg_pool1d.default(%0, [1])",
        "f32[1, 4] f32[] -> f32[1, 1] = avg_pool1d.default(%0, [9223372036854775807], [1], [9223372036854775807])",
        "f32[1, 4] f32[] -> f32[1, 4] = max_pool1d.default(%0, [-1], [1], [0], [1], false)",
        // Attention.
        "f32[2, 3] f32[] -> f32[2, 3] = scaled_dot_product_attention.default(%0, %1, %0)",
        "f32[2, 4, 3] f32[0, 4, 3] -> f32[2, 4, 3] = scaled_dot_product_attention.default(%0, %1, %1, none, 0.0, false, none, true)",
        "f32[4, 3] f32[5, 5] -> f32[4, 3] = scaled_dot_product_attention.default(%0, %0, %0, %1)",
        // Norms.
        "f32[2, 3] f32[2] -> f32[2, 3] = layer_norm.default(%0, [3], %1, none, 1e-5, false)",
        "f32[3] f32[3] -> f32[3] = rms_norm.default(%0, [1, 3], %1, 1e-5)",
        "f32[2, 3] f32[3] -> f32[2, 3] = group_norm.default(%0, 2, %1, %1, 1e-5, false)",
        "f32[3] f32[3] -> f32[3] = batch_norm.default(%0, %1, %1, %1, %1, false, 0.1, 1e-5, true)",
        // Arrangements.
        "f32[] f32[] -> f32[] = slice.Tensor(%0, 0, 0, 1, 1)",
        "f32[] f32[] -> f32[] = select.int(%0, 0, 0)",
        "f32[3] f32[] -> f32[3] = slice.Tensor(%0, 0, 0, 3, 0)",
        "f32[3] f32[] -> f32[2] = narrow.default(%0, 0, 9223372036854775807, 2)",
        "f32[2, 2] f32[] -> f32[2, 2] = permute.default(%0, [0, 0])",
        "f32[2, 3] f32[] -> f32[2] = diagonal.default(%0, 0, 1, 1)",
        "f32[2, 3] f32[] -> f32[2, 3] = roll.default(%0, [1, 2], [])",
        "f32[2, 3] f32[4] -> f32[6] = cat.default([%0, %1], 0)",
        "f32[] f32[] -> f32[2] = cat.default([%0, %1], 0)",
        "f32[2] f32[3] -> f32[2, 2] = stack.default([%0, %1], 0)",
        "f32[2] f32[] -> f32[3] = constant_pad_nd.default(%0, [0, 1, 0, 0], 0)",
        "f32[2] f32[] -> f32[1, 2] = triu.default(%0, 0)",
        "f32[2] f32[] -> f32[2] = tril.default(%0, 0)",
        "f32[2] f32[] -> f32[3] = expand.default(%0, [3])",
        // Indexing.
        "f32[2, 3] i64[4] -> f32[4, 2] = gather.default(%0, 0, %1)",
        "f32[] i64[1] -> f32[1] = gather.default(%0, 0, %1)",
        "f32[2, 3] i64[1] -> f32[2, 3] = scatter.value(%0, 1, %1, 1)",
        "f32[2, 3] i64[1, 1] -> f32[1, 3] = index_select.default(%0, 0, %1)",
        "f32[3] i64[2] -> f32[2] = embedding.default(%0, %1)",
        "f32[3] i64[2] -> f32[2] = index.Tensor(%0, [%1, %1])",
        "f32[3] i64[2] -> f32[3] = index_put.default(%0, [%1], %0, false)",
        // Pointwise operators and reductions.
        "f32[2, 3] f32[4] -> f32[2, 3] = add.Tensor(%0, %1)",
        "f32[2, 3] f32[1, 1, 1] -> f32[2, 3] = mul.Tensor(%0, %1)",
        "f32[] f32[] -> f32[1] = cumsum.default(%0, 0)",
        "f32[] f32[] -> f32[] = sum.dim_IntList(%0, [1], false, none)",
    ];
    for text in misfits {
        let (types, call) = text.split_once(" -> ").expect("operands and a result");
        let (result, call) = call.split_once(" = ").expect("a result and a call");
        let cut = types.find("] ").expect("two operands") + 1;
        let text = format!(
            "graph t\n%0 a: {} = input 0\n%1 b: {} = input 1\n%2 y: {result} = aten.{call}\noutput 0: %2\n",
            &types[..cut],
            &types[cut + 1..]
        );
        let g = inrush_graph::text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let got = survives(&g, &[None, Some((0.0, 0.0))]);
        let e = got.expect_err(&text);
        assert_eq!(e.kind(), inrush_base::ErrorKind::Input, "{e}\n{text}");
        let op = call.split('(').next().expect("an operator");
        assert_eq!(e.op(), Some(format!("aten.{op}").as_str()));
    }
}
