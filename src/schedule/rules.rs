//! The three rules in words, for readers who do not know the paper.

/// A rule that cuts schedules (deepcpu section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule and its reason, in half a line.
    pub brief: &'static str,
    /// What it asks for.
    pub asks: &'static str,
    /// What it cuts.
    pub cuts: &'static str,
    /// Why nothing is lost.
    pub why: &'static str,
}

/// The three rules, in the order they are applied.
pub const RULES: [Rule; 3] = [
    Rule {
        brief: "all steps alike: they do the same work, so one way is best for each",
        asks: "time-dependent phases are the same at every step",
        cuts: "schedules that treat some steps differently, or compute a step's inputs amid \
            another step",
        why: "all steps do the same work, so what is fastest for one is fastest for each",
    },
    Rule {
        brief: "no needless phase: joined to its neighbour it saves a meeting",
        asks: "of two phases of one type in a row, the second needs the first",
        cuts: "phases split without need, with a meeting of all cores between the halves",
        why: "the two together are one phase: no product later, one meeting less, more to share \
            out",
    },
    Rule {
        brief: "W·x within its step, or ahead of all, when its weights are read once",
        asks: "time-independent phases come before all time-dependent ones",
        cuts: "input products of several steps taken together somewhere between the steps",
        why: "taken first they are one product that reads its weights once, and the recurrent \
            weights stay in the caches from step to step; no step is complete in a later phase",
    },
];
