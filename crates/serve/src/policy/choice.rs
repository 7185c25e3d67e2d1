//! A policy by its name, for command lines and options.

use std::fmt;
use std::str::FromStr;

use super::{
    BatchSizes, Bucketing, Cellular, GraphBatching, Ideal, Merge, Order, PadTo, Padding, Policy,
};

/// Which policy, with its settings.
///
/// ```
/// use cellstream_serve::policy::Choice;
///
/// let choice: Choice = "bucketing:64,10".parse()?;
/// assert_eq!(choice, Choice::Bucketing { batch: 64, width: 10 });
/// assert_eq!(choice.to_string(), "bucketing:64,10");
/// # Ok::<(), cellstream_serve::policy::ChoiceError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// `cellular`: [`Cellular`], whose batch sizes are the cells'. Of several cells without a full batch, the one goes first whose
    /// rows are worth most for the time that its batches have taken: it changes when requests end, never what they answer.
    #[default]
    Cellular,
    /// `shortest`: [`Cellular`], where of those of one priority who has the fewest cells left goes first.
    ///
    /// It changes nothing until more rows are ready than a batch has: then most are answered sooner, and the longest later;
    /// asked for more than can be answered, they wait without end, unless a higher priority is theirs. The smaller the
    /// batches, the sooner that is; below 8 or 16 rows they bear less in all (`cellstream load --policies
    /// cellular,shortest` measures both). Counted are the cells that a request is known to need: a chain's or an encoder's
    /// steps, a tree's nodes; a stream's inputs so far; of a decoder the next one, so that decoders go in the order of
    /// arrival. They are counted when the first of those that may run now got ready: all leaves of a tree stand where the
    /// whole tree does.
    Shortest,
    /// `padding:BATCH`: [`Padding`].
    Padding {
        /// Most requests of a group.
        batch: usize,
    },
    /// `bucketing:BATCH` or `bucketing:BATCH,WIDTH`: [`Bucketing`] to the longest; width 10 unless said.
    Bucketing {
        /// Most requests of a group.
        batch: usize,
        /// Of a bucket.
        width: usize,
    },
    /// `materialised:BATCH` or `materialised:BATCH,WIDTH`: [`Bucketing`] to the bucket's bound.
    Materialised {
        /// Most requests of a group.
        batch: usize,
        /// Of a bucket.
        width: usize,
    },
    /// `merge:BATCH`: [`Merge`].
    Merge {
        /// Most requests of a group.
        batch: usize,
    },
    /// `ideal:BATCH`: [`Ideal`].
    Ideal {
        /// Most requests of a group.
        batch: usize,
    },
}

/// A bucket's width unless said: the paper's.
const WIDTH: usize = 10;

impl Choice {
    /// The policy, for cells with these batch sizes, in the order of
    /// [`crate::cell_graph::Cells`], and so many workers.
    pub fn build(&self, sizes: &[BatchSizes], workers: usize) -> Box<dyn Policy> {
        let bucketing = |batch, width, pad| {
            let rule = Bucketing { width, pad };
            Box::new(GraphBatching::new(rule, sizes, workers, batch))
        };
        match *self {
            Choice::Cellular => Box::new(Cellular::new(sizes, workers, Order::Arrival)),
            Choice::Shortest => Box::new(Cellular::new(sizes, workers, Order::FewestLeft)),
            Choice::Padding { batch } => {
                Box::new(GraphBatching::new(Padding, sizes, workers, batch))
            }
            Choice::Bucketing { batch, width } => bucketing(batch, width, PadTo::Longest),
            Choice::Materialised { batch, width } => bucketing(batch, width, PadTo::Bound),
            Choice::Merge { batch } => Box::new(GraphBatching::new(Merge, sizes, workers, batch)),
            Choice::Ideal { batch } => Box::new(GraphBatching::new(Ideal, sizes, workers, batch)),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Cellular => f.write_str("cellular"),
            Choice::Shortest => f.write_str("shortest"),
            Choice::Padding { batch } => write!(f, "padding:{batch}"),
            Choice::Bucketing { batch, width } => write!(f, "bucketing:{batch},{width}"),
            Choice::Materialised { batch, width } => write!(f, "materialised:{batch},{width}"),
            Choice::Merge { batch } => write!(f, "merge:{batch}"),
            Choice::Ideal { batch } => write!(f, "ideal:{batch}"),
        }
    }
}

/// Text that is no [`Choice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no policy; accepted are cellular, shortest, padding:BATCH, bucketing:BATCH[,WIDTH], \
     materialised:BATCH[,WIDTH], merge:BATCH and ideal:BATCH, with whole numbers from 1"
)]
pub struct ChoiceError(String);

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Choice, ChoiceError> {
        let wrong = || ChoiceError(text.into());
        let number = |text: &str| {
            let number = text.parse().ok().filter(|&number| number > 0);
            number.ok_or_else(wrong)
        };
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, Some(settings)),
            None => (text, None),
        };
        let Some(settings) = settings else {
            return match name {
                "cellular" => Ok(Choice::Cellular),
                "shortest" => Ok(Choice::Shortest),
                _ => Err(wrong()),
            };
        };
        if let "bucketing" | "materialised" = name {
            let (batch, width) = match settings.split_once(',') {
                Some((batch, width)) => (number(batch)?, number(width)?),
                None => (number(settings)?, WIDTH),
            };
            return Ok(match name {
                "bucketing" => Choice::Bucketing { batch, width },
                _ => Choice::Materialised { batch, width },
            });
        }
        let batch = number(settings)?;
        match name {
            "padding" => Ok(Choice::Padding { batch }),
            "merge" => Ok(Choice::Merge { batch }),
            "ideal" => Ok(Choice::Ideal { batch }),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read() {
        let sizes = [BatchSizes { min: 1, max: 8 }];
        let (batch, width) = (64, 7);
        for (choice, text, name) in [
            (Choice::Cellular, "cellular", "cellular"),
            (Choice::Shortest, "shortest", "shortest"),
            (Choice::Padding { batch }, "padding:64", "padding"),
            (
                Choice::Bucketing { batch, width },
                "bucketing:64,7",
                "bucketing",
            ),
            (
                Choice::Materialised { batch, width },
                "materialised:64,7",
                "materialised",
            ),
            (Choice::Merge { batch }, "merge:64", "merge"),
            (Choice::Ideal { batch }, "ideal:64", "ideal"),
        ] {
            assert_eq!(choice.to_string(), text);
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.build(&sizes, 1).name(), name);
        }
        let width = 10;
        assert_eq!(
            "bucketing:64".parse(),
            Ok(Choice::Bucketing { batch, width })
        );
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "cellular:4",
            "shortest:4",
            "padding",
            "padding:",
            "padding:0",
            "padding:-1",
            "padding:4,10",
            "bucketing:4,0",
            "bucketing:4,1,2",
            "merge:x",
            "Ideal:4",
            "fold:4",
        ] {
            let error = text.parse::<Choice>().expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no policy; accepted are ")),
                "{error}"
            );
        }
    }
}
