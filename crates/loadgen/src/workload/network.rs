//! The networks that can be served.

/// The network that the target serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Network {
    /// A chain of LSTM cells
    Lstm,
    /// A chain of GRU cells
    Gru,
    /// An LSTM encoder and an LSTM decoder that is fed its own words
    Seq2seq,
    /// A binary TreeLSTM with leaf and internal cells
    Treelstm,
    /// A child-sum TreeLSTM, any number of children
    TreeChildSum,
}

impl Network {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Network::Lstm => "lstm",
            Network::Gru => "gru",
            Network::Seq2seq => "seq2seq",
            Network::Treelstm => "treelstm",
            Network::TreeChildSum => "tree-child-sum",
        }
    }

    /// Names of its cells, in the order of batch sizes.
    pub fn cells(self) -> &'static [&'static str] {
        match self {
            Network::Lstm | Network::Gru => &["chain"],
            Network::Seq2seq => &["encoder", "decoder"],
            Network::Treelstm => &["tree leaf", "tree node"],
            Network::TreeChildSum => &["tree child", "tree node"],
        }
    }

    /// Whether its requests are trees.
    pub fn is_tree(self) -> bool {
        matches!(self, Network::Treelstm | Network::TreeChildSum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        use clap::ValueEnum;
        for network in Network::value_variants() {
            let typed = network.to_possible_value().unwrap();
            assert_eq!(typed.get_name(), network.name());
        }
    }
}
