//! A graph as Graphviz text.

use std::io::{self, Write};

use super::{Graph, Product};

impl Graph {
    /// Writes the graph in Graphviz' DOT language: a box per layer, direction and step, input
    /// products blue, recurrent ones orange, projections green. Draw it with
    /// `dot -Tsvg graph.dot -o graph.svg`.
    ///
    /// # Errors
    /// What writing to `out` gave.
    pub fn dot(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "digraph mm_dag {{")?;
        writeln!(out, "  rankdir=LR;")?;
        writeln!(
            out,
            "  node [shape=box, style=filled, fontname=\"Helvetica\"];"
        )?;
        for (layer, chains) in self.layers.iter().enumerate() {
            writeln!(out, "  subgraph cluster_{layer} {{")?;
            writeln!(out, "    label=\"layer {layer}\";")?;
            for (direction, chain) in chains.iter().enumerate() {
                let way = if chain.reverse { "reverse" } else { "forward" };
                writeln!(out, "    subgraph cluster_{layer}_{direction} {{")?;
                writeln!(out, "      label=\"{way} {}\";", chain.kind)?;
                for taken in 0..self.steps {
                    let step = self.turned(chain, taken);
                    writeln!(out, "      subgraph cluster_{layer}_{direction}_{step} {{")?;
                    writeln!(out, "        label=\"step {step}\";")?;
                    let products = chain.products();
                    for node in self.step_nodes(layer, direction, taken, products) {
                        // Light enough to read black letters on; different in grey as well.
                        let colour = match node.product {
                            Product::Input(_) => "#cfe2f3",
                            Product::Recurrent(_) => "#f9cb9c",
                            Product::Projection => "#93c47d",
                        };
                        let (name, label) = (self.name(&node), self.label(&node));
                        writeln!(
                            out,
                            "        {name} [label=\"{label}\", fillcolor=\"{colour}\"];"
                        )?;
                    }
                    writeln!(out, "      }}")?;
                }
                writeln!(out, "    }}")?;
            }
            writeln!(out, "  }}")?;
        }
        for node in self.nodes() {
            for needed in self.predecessors(&node) {
                writeln!(out, "  {} -> {};", self.name(&needed), self.name(&node))?;
            }
        }
        writeln!(out, "}}")
    }

    fn name(&self, node: &super::Node) -> String {
        format!("n{}", self.index(node).unwrap_or_default())
    }
}
