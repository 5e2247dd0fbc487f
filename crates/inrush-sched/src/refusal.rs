//! Reasons for not fusing, kept as data.

use inrush_loops::{Origin, OriginId};
use std::fmt;

/// A fusion that was considered and refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The operator whose result would have stayed out of memory.
    pub producer: Option<OriginId>,
    pub consumer: Option<OriginId>,
    pub reason: Reason,
}

impl Refusal {
    /// `producer -> consumer: reason`, with the names of the plan's origins.
    pub fn show(&self, origins: &[Origin]) -> String {
        let (from, to) = (name(origins, self.producer), name(origins, self.consumer));
        format!("{from} -> {to}: {}", self.reason)
    }
}

/// Name of an origin; `?` for none.
pub(crate) fn name(origins: &[Origin], o: Option<OriginId>) -> &str {
    o.and_then(|o| origins.get(o.index()))
        .map_or("?", |o| o.name.as_str())
}

macro_rules! reasons {
    ($($name:ident $text:literal $why:literal;)*) => {
        /// Why a fusion was refused.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Reason { $(#[doc = $why] $name,)* }
        impl Reason {
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];
            /// Name in text forms.
            pub fn text(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }
            /// The reason of this name.
            pub fn parse(text: &str) -> Option<Reason> {
                Self::ALL.iter().copied().find(|r| r.text() == text)
            }
            /// A sentence for people.
            pub fn why(self) -> &'static str {
                match self { $(Reason::$name => $why,)* }
            }
        }
    };
}

reasons! {
    NotSameDomain "not_same_domain" "The two run over different iteration domains.";
    ReadsOtherPoints "reads_other_points" "The consumer reads the producer's result at other points than the one it is at.";
    WouldCycle "would_cycle" "Another kernel lies between the two.";
    TooManyStatements "too_many_statements" "The fused kernel would hold too many statements.";
    TooManyBuffers "too_many_buffers" "The fused kernel would touch too many buffers.";
    RepeatsWork "repeats_work" "The consumer would compute the producer's values several times.";
    SeveralReaders "several_readers" "The result is expensive and has several readers.";
    IsContraction "is_contraction" "A contraction reads its operands from memory.";
    IsLibraryCall "is_library_call" "A library function reads and writes whole tensors in memory.";
    IsAttention "is_attention" "An attention reads queries, keys and values from memory, and stores its results.";
    ReductionOfContraction "reduction_of_contraction" "A reduction does not run inside a contraction's tiles.";
    NotAffineInLanes "not_affine_in_lanes" "An access of the epilogue has no unit or zero stride along the columns.";
    Overwritten "overwritten" "A buffer that the producer reads, or writes, is overwritten by another kernel.";
    IsOutput "is_output" "The result is an output and is stored by its own kernel.";
    SeveralResults "several_results" "The producer stores several results, or stores under a mask.";
    FusesWithProducer "fuses_with_producer" "The result becomes part of the contraction or reduction that it reads, which comes first.";
    RunsAtLoad "runs_at_load" "The result depends on weights only and is computed once, at load.";
    StridedPoints "strided_points" "One outer point would be a strided column of what the kernel writes.";
    SeveralTiles "several_tiles" "The two would need tiles of different shapes, or hand values over at different places of a tile.";
    TooFewPoints "too_few_points" "Fused, the kernel would have too few outer points for the threads.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
