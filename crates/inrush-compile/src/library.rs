//! Operators that vendors' libraries do best on GPUs: matrix products, convolutions, attention, sorting. They are called
//! between segments.

/// Why they are called, for reports.
pub const REASON: &str = "a library's";

/// Their names without overloads, sorted.
const OPERATORS: &[&str] = &[
    "_addmm_activation",
    "_efficient_attention_backward",
    "_efficient_attention_forward",
    "_flash_attention_backward",
    "_flash_attention_forward",
    "_grouped_mm",
    "_int_mm",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_mm",
    "addbmm",
    "addmm",
    "baddbmm",
    "bmm",
    "convolution",
    "convolution_backward",
    "mm",
    "msort",
    "sort",
    "topk",
];

/// Whether an operator like `aten.mm.default` is one of them.
pub fn serves(op: &str) -> bool {
    let mut parts = op.split('.');
    parts.next() == Some("aten")
        && parts
            .next()
            .is_some_and(|n| OPERATORS.binary_search(&n).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_found() {
        assert!(OPERATORS.is_sorted());
        assert!(serves("aten.mm.default") && serves("aten.sort.stable"));
        assert!(!serves("aten.add.Tensor") && !serves("prims.mm"));
    }
}
