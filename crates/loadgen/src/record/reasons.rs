//! The messages of requests without an answer.

use std::collections::BTreeMap;

/// Most messages that are told apart.
const MOST: usize = 8;

/// Most characters of a message that are kept.
const LONGEST: usize = 300;

/// Messages of a target and their numbers. Their number and their length are bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reasons {
    #[serde(rename = "reasons", skip_serializing_if = "BTreeMap::is_empty")]
    counts: BTreeMap<String, u64>,
    /// Of requests with further messages.
    #[serde(rename = "other_reasons", skip_serializing_if = "is_zero")]
    others: u64,
}

impl Reasons {
    /// Counts a request with this message; none if it is empty.
    pub fn add(&mut self, message: &str) {
        if !message.is_empty() {
            self.add_times(message, 1);
        }
    }

    /// Adds all messages of `more`.
    pub fn merge(&mut self, more: &Reasons) {
        for (message, count) in &more.counts {
            self.add_times(message, *count);
        }
        self.others += more.others;
    }

    /// The messages, the most frequent first.
    pub fn most_frequent(&self) -> Vec<(&str, u64)> {
        let counts = self.counts.iter();
        let mut all: Vec<_> = counts
            .map(|(text, count)| (text.as_str(), *count))
            .collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }

    /// Number of requests with further messages.
    pub fn others(&self) -> u64 {
        self.others
    }

    fn add_times(&mut self, message: &str, count: u64) {
        // One line of a table.
        let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let kept: String = line.chars().take(LONGEST).collect();
        if self.counts.len() < MOST || self.counts.contains_key(&kept) {
            *self.counts.entry(kept).or_default() += count;
        } else {
            self.others += count;
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_messages_are_counted_and_the_rest_is_bounded() {
        let mut reasons = Reasons::default();
        for number in 0..100 {
            reasons.add("shape\n  [1, 2]");
            reasons.add(&format!("request {number} is unknown"));
            reasons.add("");
        }
        assert_eq!(reasons.most_frequent()[0], ("shape [1, 2]", 100));
        assert_eq!(reasons.most_frequent().len(), MOST);
        let counted: u64 = reasons.most_frequent().iter().map(|(_, count)| count).sum();
        assert_eq!((counted, reasons.others()), (100 + 7, 93));
        let mut twice = reasons.clone();
        twice.merge(&reasons);
        assert_eq!(twice.most_frequent()[0].1, 200);
        assert_eq!(twice.others(), 186);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut reasons = Reasons::default();
        reasons.add(&"ä".repeat(100_000));
        assert_eq!(reasons.most_frequent(), [(&*"ä".repeat(LONGEST), 1)]);
    }
}
