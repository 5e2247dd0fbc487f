//! List scheduling of launches into groups that run concurrently, shared by CPUs and GPUs, which say what may share a launch and
//! what depends on what.

/// Groups that a step may move back by to run with others.
const WINDOW: usize = 128;

/// The group that a step joins, for groups in the order in which they run: the first that takes it after the last one that
/// it depends on, which it may not join. None: it starts a new one at the end.
pub fn group_of<G>(
    groups: &[G],
    depends: impl Fn(&G) -> bool,
    takes: impl Fn(&G) -> bool,
) -> Option<usize> {
    let stop = groups.len().saturating_sub(WINDOW);
    let first = (stop..groups.len())
        .rev()
        .find(|g| depends(&groups[*g]))
        .map_or(stop, |g| g + 1);
    (first..groups.len()).find(|g| takes(&groups[*g]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_joins_the_first_group_after_what_it_depends_on() {
        let groups = ["taken", "needed", "full", "fits", "fits"];
        let takes = |g: &&str| *g != "full";
        assert_eq!(group_of(&groups, |g| *g == "needed", takes), Some(3));
        assert_eq!(group_of(&groups, |_| false, takes), Some(0));
        assert_eq!(group_of(&groups, |_| true, takes), None);
        let many = vec!["taken"; WINDOW + 5];
        assert_eq!(group_of(&many, |_| false, takes), Some(5));
    }
}
