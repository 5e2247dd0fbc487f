//! Attention that keeps no scores, for GPUs without a library that computes it, and for what is too small for the library.
//!
//! # What it does
//! `scaled_dot_product_attention` becomes a product, its scores and a mask, and an attention. Stage fuse makes one kernel of
//! them, with an online softmax. A causal mask is one that the kernel knows, so that no key after the last query is read.
//!
//! # When
//! On GPUs, over segments: a host whose library computes attention calls it between segments, and hands over small ones only.
//! Operands are of three or four dimensions and of `f16`, `bf16` or, if the scores leave the caches, `f32`. Heads have at most 256
//! elements, and there is no dropout. A single query over many keys is not replaced: one program for each head would read all
//! of them.
//!
//! # Numerics
//! Weights are rounded to the dtype of values before they are multiplied, as libraries do.
//!
//! # Example
//! ```text
//! %3 o: f16[1, 2, 5, 8] = aten.scaled_dot_product_attention.default(%0, %1, %2)
//! =>
//! %3 o.product: f32[1, 2, 5, 7] = inrush.attention_product.default(%0, %1)
//! %4 o.scores: f32[1, 2, 5, 7] = aten.mul.Tensor(%3, 0.3535533905932738)
//! %5 o, %6 o.logsumexp, %7 o.max = inrush.attention.default(%0, %1, %2, %3, %4, none, none, none, none, none, 0, 0)
//! ```

use crate::replace::Builder;
use crate::{Context, Pass};
use inrush_base::DType;
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, Node, TensorType, ValueId};

pub(crate) const PASS: Pass = Pass {
    name: "online_attention",
    applies: |cx| cx.caps.gpu.is_some(),
    run,
};

/// The largest head of a kernel.
const HEAD: i64 = 256;

/// Rows that fill a tile. Fewer are one program for each head, which may read this many keys.
const ROWS: i64 = 16;
const KEYS: i64 = 512;

/// Scores from which on products in `f32` gain. Fewer stay in the caches, and such products have no tensor cores.
const SCORES: i64 = 1 << 24;

fn run(graph: &mut Graph, _: &Context) {
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        match read(graph, &node) {
            Some(call) => replace(graph, node, call),
            None => graph.nodes.push(node),
        }
    }
}

/// A call that becomes an attention.
struct Call {
    /// Query, key and value.
    operands: [ValueId; 3],
    types: [TensorType; 3],
    mask: Option<(ValueId, TensorType)>,
    causal: bool,
    scale: f64,
}

/// Returns the parts of a call, if it is one that a kernel takes.
fn read(graph: &Graph, node: &Node) -> Option<Call> {
    if node.op != "aten.scaled_dot_product_attention.default" || node.outs.len() != 1 {
        return None;
    }
    let ex = &graph.exprs;
    let tensor = |at: usize| match node.args.get(at) {
        Some(Arg::Value(v)) => Some((*v, graph.tensor(*v).ok()?.clone())),
        _ => None,
    };
    let flag = |at: usize| match node.args.get(at) {
        Some(Arg::Bool(b)) => Some(*b),
        None | Some(Arg::None) => Some(false),
        _ => None,
    };
    let float = |at: usize, default: f64| match node.args.get(at) {
        Some(Arg::Float(x)) => Some(*x),
        None | Some(Arg::None) => Some(default),
        _ => None,
    };
    let ((query, q), (key, k), (value, v)) = (tensor(0)?, tensor(1)?, tensor(2)?);
    let features = ex.as_int(*q.sizes.last()?)?;
    let (causal, mask) = (flag(5)?, tensor(3));
    let masked = match (&mask, node.args.get(3)) {
        (Some((_, t)), _) => t.sizes.len() <= q.sizes.len() && !causal,
        (None, arg) => matches!(arg, None | Some(Arg::None)),
    };
    if !masked || float(4, 0.0)? != 0.0 || !fits(graph, [&q, &k, &v], flag(7)?) {
        return None;
    }
    Some(Call {
        operands: [query, key, value],
        types: [q, k, v],
        mask,
        causal,
        scale: float(6, 1.0 / (features as f64).sqrt())?,
    })
}

/// Returns true if operands have types and sizes that a kernel takes.
fn fits(graph: &Graph, types: [&TensorType; 3], grouped: bool) -> bool {
    let ex = &graph.exprs;
    let [q, k, v] = types;
    let dtypes = matches!(q.dtype, DType::F16 | DType::BF16 | DType::F32)
        && k.dtype == q.dtype
        && v.dtype == q.dtype;
    let rank = q.sizes.len();
    if !dtypes || !(3..=4).contains(&rank) || k.sizes.len() != rank || v.sizes.len() != rank {
        return false;
    }
    let known = |e: Expr, most: i64| ex.as_int(e).is_some_and(|n| (1..=most).contains(&n));
    let (rows, keys, features, columns) = (
        q.sizes[rank - 2],
        k.sizes[rank - 2],
        q.sizes[rank - 1],
        v.sizes[rank - 1],
    );
    let lead = |t: &TensorType| t.sizes[..rank - 2].to_vec();
    let heads = || {
        let (q, k) = (q.sizes[rank - 3], k.sizes[rank - 3]);
        rank == 4 && grouped && !ex.is_int(k, 0) && ex.divide_exact(q, k).is_some()
    };
    let scores = || {
        let sizes = lead(q).into_iter().chain([rows, keys]);
        sizes.fold(1i64, |n, e| n.saturating_mul(ex.hint(e).max(1)))
    };
    lead(k) == lead(v)
        && k.sizes[0] == q.sizes[0]
        && (lead(k) == lead(q) || heads())
        && v.sizes[rank - 2] == keys
        && k.sizes[rank - 1] == features
        && known(features, HEAD)
        && known(columns, HEAD)
        && q.sizes.iter().chain(&k.sizes).all(|e| !ex.is_int(*e, 0))
        && (ex.hint(rows) >= ROWS || ex.hint(keys) <= KEYS)
        && (q.dtype != DType::F32 || scores() >= SCORES)
}

/// Puts product, scores, mask and attention in the place of a call.
fn replace(graph: &mut Graph, node: Node, call: Call) {
    let out = node.outs[0];
    let name = graph.value(out).name.clone();
    let mut b = Builder {
        graph,
        line: node.line,
        name: &name,
    };
    let three = call.types[0].sizes.len() == 3;
    let (mut operands, mut types) = (call.operands, call.types);
    for (at, part) in ["query", "key", "value"].iter().enumerate() {
        (operands[at], types[at]) = with_heads(&mut b, operands[at], types[at].clone(), 1, part);
    }
    let [q, k, v] = &types;
    let points = [q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]];
    let of_points = b.contiguous(DType::F32, points.to_vec());
    let args = operands[..2].iter().map(|v| Arg::Value(*v)).collect();
    let op = "inrush.attention_product.default";
    let product = b.push(op, args, "product", of_points.clone());
    let args = vec![Arg::Value(product), Arg::Float(call.scale)];
    let mut scores = b.push("aten.mul.Tensor", args, "scores", of_points.clone());
    let mut keep = Arg::None;
    match call.mask {
        // A mask of the scores' last dimensions, with heads if these have them.
        Some((mask, t)) => {
            let lead = usize::from(three && t.sizes.len() == 3);
            let (mask, t) = with_heads(&mut b, mask, t, lead, "mask");
            if t.dtype == DType::Bool {
                keep = Arg::Value(mask);
            } else {
                let one = Arg::Int(b.graph.exprs.int(1));
                let args = vec![Arg::Value(scores), Arg::Value(mask), one];
                scores = b.push("aten.add.Tensor", args, "masked", of_points);
            }
        }
        None if call.causal => keep = Arg::Value(causal(&mut b, points[2], points[3])),
        None => {}
    }
    let rows = b.contiguous(DType::F32, points[..3].to_vec());
    let result = if three {
        let columns = points[..3].iter().copied().chain([v.sizes[3]]).collect();
        let ty = b.contiguous(q.dtype, columns);
        b.value("heads", ty)
    } else {
        out
    };
    let logsumexp = b.value("logsumexp", rows.clone());
    let max = b.value("max", rows);
    let zero = Arg::Int(b.graph.exprs.int(0));
    let values = operands.into_iter().chain([product, scores]);
    let mut args: Vec<Arg> = values.map(Arg::Value).collect();
    args.push(keep);
    // No lists of blocks.
    args.extend(vec![Arg::None; 4]);
    args.extend([zero.clone(), zero]);
    let outs = vec![result, logsumexp, max];
    b.add("inrush.attention.default", args, outs);
    if three {
        let one = Arg::Int(b.graph.exprs.int(1));
        let args = vec![Arg::Value(result), one];
        b.add("aten.squeeze.dim", args, vec![out]);
    }
}

/// Inserts dimensions of one element at `at`, until there are four.
fn with_heads(
    b: &mut Builder,
    mut of: ValueId,
    mut t: TensorType,
    at: usize,
    part: &str,
) -> (ValueId, TensorType) {
    while t.sizes.len() < 4 {
        let ex = &b.graph.exprs;
        let (one, dim) = (ex.int(1), Arg::Int(ex.int(at as i64)));
        let stride = match (t.sizes.get(at), t.strides.get(at)) {
            (Some(size), Some(stride)) => ex.mul(*size, *stride),
            _ => one,
        };
        t.sizes.insert(at, one);
        t.strides.insert(at, stride);
        let part = format!("{part}{}", t.sizes.len());
        let args = vec![Arg::Value(of), dim];
        of = b.push("aten.unsqueeze.default", args, &part, t.clone());
    }
    (of, t)
}

/// Returns a mask that keeps the keys up to each query's position.
fn causal(b: &mut Builder, queries: Expr, keys: Expr) -> ValueId {
    let one = b.graph.exprs.int(1);
    let mut positions = |part: &str, n: Expr, sizes: Vec<Expr>| {
        let none = || Arg::None;
        let args = vec![Arg::Int(n), none(), none(), none(), Arg::Bool(false)];
        let ty = b.contiguous(DType::I64, vec![n]);
        let flat = b.push("aten.arange.default", args, part, ty);
        b.view(flat, &format!("{part}.positions"), DType::I64, sizes)
    };
    let i = positions("queries", queries, vec![one, one, queries, one]);
    let j = positions("keys", keys, vec![one, one, one, keys]);
    let args = vec![Arg::Value(j), Arg::Value(i)];
    let ty = b.contiguous(DType::Bool, vec![one, one, queries, keys]);
    b.push("aten.le.Tensor", args, "causal", ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(types: [&str; 4], call: &str) -> String {
        let [q, k, m, o] = types;
        let text = format!(
            "graph g\n\
            %0 q: {q} = input 0\n\
            %1 k: {k} = input 1\n\
            %2 m: {m} = input 2\n\
            %3 o: {o} = aten.scaled_dot_product_attention.default(%0, %1, %1, {call})\n\
            output 0: %3\n"
        );
        let mut graph = inrush_graph::text::parse(&text).unwrap();
        let caps = inrush_base::Caps::cpu(inrush_base::Isa::Avx2, 1);
        run(&mut graph, &Context::segment(&caps));
        inrush_graph::verify::verify(&graph).unwrap();
        graph.print()
    }

    const FOUR: [&str; 4] = [
        "f16[1, 2, 300, 8]",
        "f16[1, 2, 200, 8]",
        "bool[300, 200]",
        "f16[1, 2, 300, 8]",
    ];

    #[test]
    fn masks_are_operands() {
        let text = replaced(FOUR, "%2, 0.0, false");
        assert!(text.contains("aten.unsqueeze.default(%2, 0)"), "{text}");
        assert!(text.contains("inrush.attention.default"), "{text}");
        assert!(!text.contains("aten.arange"), "{text}");
    }

    #[test]
    fn causal_masks_compare_positions() {
        let text = replaced(FOUR, "none, 0.0, true");
        assert!(
            text.contains("bool[1, 1, 300, 200] = aten.le.Tensor"),
            "{text}"
        );
    }

    #[test]
    fn batches_without_heads_have_one() {
        let types = [
            "f16[2, 30, 8]",
            "f16[2, 20, 8]",
            "f16[2, 1, 20]",
            "f16[2, 30, 8]",
        ];
        let text = replaced(types, "%2, 0.0, false");
        assert!(text.contains("f16[2, 1, 1, 20]"), "{text}");
        assert!(text.contains("f16[2, 30, 8] = aten.squeeze.dim"), "{text}");
    }

    #[test]
    fn what_no_kernel_takes_stays() {
        let stays = |types, call| {
            let text = replaced(types, call);
            assert!(text.contains("aten.scaled_dot_product_attention"), "{text}");
        };
        stays(FOUR, "%2, 0.5, false");
        // One query over many keys.
        let [_, _, _, o] = FOUR.map(|t| t.replace("300", "1"));
        let key = "f16[1, 2, 2000, 8]";
        stays([&o, key, "bool[1, 2000]", &o], "%2, 0.0, false");
        // Products of f32 over few scores.
        let [q, k, m, o] = FOUR.map(|t| t.replace("f16", "f32"));
        stays([&q, &k, &m, &o], "%2");
        let double = FOUR.map(|t| t.replace("f16", "f64"));
        stays([&double[0], &double[1], FOUR[2], &double[3]], "%2");
    }
}
