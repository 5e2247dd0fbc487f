//! Einstein summation equations: `"b...i,ij->b...j"` to index letters of each operand.
//!
//! ```text
//! "b...i,ij->b...j"  for ranks 4, 2     inputs [b, .1, .0, i], [i, j]     output [b, .1, .0, j]
//! ```
//!
//! The dots stand for as many dimensions as a term has left over; operands may have different
//! numbers of them. Numbering them from the right makes equal ones broadcast together. Spaces
//! count nowhere.

use inrush_base::{Error, Result};

/// An index: a letter of the equation, or the dimension of the ellipsis counted from its last.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Index {
    /// Dimension of the ellipsis, from the right: broadcasting aligns there. Before letters in an implicit output.
    Dots(std::cmp::Reverse<usize>),
    Letter(char),
}

/// A parsed equation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Equation {
    /// For each operand an index per dimension; an index may occur twice in a term (a
    /// diagonal).
    pub inputs: Vec<Vec<Index>>,
    /// Indices of the result, each once, in the order of its dimensions.
    pub output: Vec<Index>,
}

impl Equation {
    /// Parses `text` for operands of the given ranks.
    pub fn parse(text: &str, ranks: &[usize]) -> Result<Equation> {
        let wrong = |why: String| Err(Error::input(format!("equation `{text}`: {why}")));
        let (left, right) = match text.split_once("->") {
            Some((l, r)) => (l, Some(r)),
            None => (text, None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != ranks.len() {
            return wrong(format!(
                "{} terms for {} operands",
                terms.len(),
                ranks.len()
            ));
        }
        let mut dots = 0;
        let mut inputs = Vec::with_capacity(terms.len());
        for (term, rank) in terms.iter().zip(ranks) {
            let Some((before, hole, after)) = split_term(term) else {
                return wrong(format!("malformed term `{term}`"));
            };
            let named = before.len() + after.len();
            // Without dots each dimension needs a letter.
            if named > *rank || (!hole && named != *rank) {
                return wrong(format!("term `{term}` for an operand of rank {rank}"));
            }
            let open = rank - named;
            dots = dots.max(open);
            let mut indices: Vec<Index> = before.into_iter().map(Index::Letter).collect();
            indices.extend(dot_indices(open));
            indices.extend(after.into_iter().map(Index::Letter));
            inputs.push(indices);
        }
        let output = match right {
            Some(r) => {
                let Some((before, hole, after)) = split_term(r) else {
                    return wrong(format!("malformed output `{r}`"));
                };
                let mut out: Vec<Index> = before.into_iter().map(Index::Letter).collect();
                if hole {
                    out.extend(dot_indices(dots));
                }
                out.extend(after.into_iter().map(Index::Letter));
                out
            }
            // Without an arrow: the ellipsis, then every letter that occurs once, in alphabetical order.
            None => {
                let mut letters: Vec<Index> = inputs.iter().flatten().copied().collect();
                // Equal letters must be adjacent to be counted.
                letters.sort();
                let mut out: Vec<Index> = dot_indices(dots).collect();
                out.extend(
                    letters
                        .chunk_by(|a, b| a == b)
                        .filter(|c| c.len() == 1 && matches!(c[0], Index::Letter(_)))
                        .map(|c| c[0]),
                );
                out
            }
        };
        for (i, index) in output.iter().enumerate() {
            if !inputs.iter().flatten().any(|x| x == index) {
                return wrong("the output has an index that no operand has".into());
            }
            if output[..i].contains(index) {
                return wrong("the output repeats an index".into());
            }
        }
        Ok(Equation { inputs, output })
    }
}

/// Dimensions of an ellipsis of this length, from the leftmost.
fn dot_indices(count: usize) -> impl Iterator<Item = Index> {
    (0..count).rev().map(|d| Index::Dots(std::cmp::Reverse(d)))
}

/// Letters before the ellipsis, whether there is one, letters after it.
fn split_term(term: &str) -> Option<(Vec<char>, bool, Vec<char>)> {
    let letters = |s: &str| -> Option<Vec<char>> {
        s.chars()
            .filter(|c| *c != ' ')
            .map(|c| c.is_ascii_alphabetic().then_some(c))
            .collect()
    };
    match term.split_once("...") {
        Some((a, b)) => Some((letters(a)?, true, letters(b)?)),
        None => Some((letters(term)?, false, Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(s: &str) -> Vec<Index> {
        s.chars().map(Index::Letter).collect()
    }

    #[test]
    fn explicit_and_implicit_outputs() {
        let e = Equation::parse("ij, jk -> ik", &[2, 2]).expect("valid");
        assert_eq!(e.output, letters("ik"));
        let e = Equation::parse("ba,cb", &[2, 2]).expect("valid");
        assert_eq!(e.output, letters("ac"));
    }

    #[test]
    fn ellipsis_aligns_at_the_right() {
        let e = Equation::parse("...ij,jk", &[4, 2]).expect("valid");
        assert_eq!(e.inputs[0].len(), 4);
        assert_eq!(e.output.len(), 4);
        assert_eq!(e.output[1], Index::Dots(std::cmp::Reverse(0)));
        assert_eq!(e.output[2..], letters("ik"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, ranks) in [
            ("ij,jk->iz", &[2, 2][..]),
            ("ij->i", &[3]),
            ("ij,jk->ii", &[2, 2]),
            ("i,j", &[1]),
            ("i.j", &[2]),
        ] {
            assert!(Equation::parse(text, ranks).is_err(), "{text}");
        }
    }
}
