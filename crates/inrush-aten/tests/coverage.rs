//! Every operator of the benchmark models (as `torch.export` writes them) is described by a row.

/// ResNet-18, MobileNetV3, a vision transformer, DistilBERT, GPT-2, a Llama and a normalisation chain. Symbolic sizes are
/// the reader's own.
const MODELS: &[&str] = &[
    "aten.__and__.Tensor",
    "aten._assert_tensor_metadata.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.add.Tensor",
    "aten.add_.Tensor",
    "aten.addmm.default",
    "aten.alias.default",
    "aten.arange.default",
    "aten.batch_norm.default",
    "aten.cat.default",
    "aten.conv2d.default",
    "aten.cos.default",
    "aten.cumsum.default",
    "aten.diff.default",
    "aten.dropout.default",
    "aten.dropout_.default",
    "aten.embedding.default",
    "aten.eq.Tensor",
    "aten.expand.default",
    "aten.flatten.using_ints",
    "aten.ge.Scalar",
    "aten.gelu.default",
    "aten.hardsigmoid.default",
    "aten.hardswish_.default",
    "aten.index.Tensor",
    "aten.layer_norm.default",
    "aten.le.Tensor",
    "aten.linear.default",
    "aten.max_pool2d.default",
    "aten.mean.dim",
    "aten.mul.Tensor",
    "aten.ne.Scalar",
    "aten.neg.default",
    "aten.new_ones.default",
    "aten.permute.default",
    "aten.pow.Tensor_Scalar",
    "aten.relu.default",
    "aten.relu_.default",
    "aten.reshape.default",
    "aten.rsqrt.default",
    "aten.scaled_dot_product_attention.default",
    "aten.select.int",
    "aten.sigmoid.default",
    "aten.silu.default",
    "aten.sin.default",
    "aten.slice.Tensor",
    "aten.softmax.int",
    "aten.split.Tensor",
    "aten.sub.Tensor",
    "aten.tanh.default",
    "aten.to.device",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.transpose.int",
    "aten.unbind.int",
    "aten.unsqueeze.default",
    "aten.view.default",
];

#[test]
fn models_are_covered() {
    let missing: Vec<&str> = MODELS
        .iter()
        .copied()
        .filter(|op| inrush_aten::bind::signature(op).is_none())
        .collect();
    assert!(missing.is_empty(), "no row describes {missing:?}");
}
