//! The ports of the graph inputs, and the model of the finished chain.

use super::super::budget::malformed;
use super::{ChainBuilder, StateInput};
use crate::model::{Axis, Interface, Layer, LoadError, Merge, Model, Port, Role};

impl ChainBuilder {
    /// The model, after all nodes and outputs have been added.
    pub(in crate::model::onnx) fn finish(mut self) -> Result<Model, LoadError> {
        if self.layers.is_empty() {
            return Err(malformed(
                "the graph has no recurrent node; supported: LSTM, GRU, RNN and \
                 DynamicQuantizeLSTM",
            ));
        }
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for index in 0..self.inputs.len() {
            inputs.push(self.input_port(index)?);
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for stage in self.layers {
            let mut directions = stage.directions.into_iter();
            layers.push(match (directions.next(), directions.next()) {
                (Some(one), None) => Layer::single(one),
                (Some(forward), Some(reverse)) => {
                    Layer::bidirectional(forward, reverse, stage.merge.unwrap_or(Merge::Concat))?
                }
                (None, _) => return Err(malformed("a recurrent node has no direction")),
            });
        }
        let interface = Interface {
            inputs,
            outputs: self.outputs,
        };
        let mut model = Model::with_interface(layers, interface)?;
        model.quantised = self.quantised;
        Ok(model)
    }

    fn input_port(&mut self, index: usize) -> Result<Port, LoadError> {
        let name = self.inputs[index].name.clone();
        let refuse = |reason: String| {
            Err(LoadError::Tensor {
                name: name.clone(),
                reason: format!("this graph input {reason}"),
            })
        };
        let mut uses: Vec<&StateInput> = self.states.iter().filter(|u| u.input == index).collect();
        uses.sort_by_key(|u| u.start);
        let roles = usize::from(self.sequence == Some(index))
            + usize::from(self.lengths == Some(index))
            + usize::from(!uses.is_empty());
        if roles != 1 {
            let how = if roles == 0 {
                "no role"
            } else {
                "several roles"
            };
            return refuse(format!(
                "has {how}; supported: one of X, sequence_lens, initial_h, initial_c"
            ));
        }
        let role = match uses.first() {
            None if self.sequence == Some(index) => Role::Input,
            None => Role::Lengths,
            Some(first) => {
                let mut end = 0usize;
                let mut slices_fit = true;
                for part in &uses {
                    slices_fit &= part.start == end
                        && part.cell == first.cell
                        && part.axis == first.axis
                        && (part.axis.is_some() || uses.len() == 1);
                    end = end.saturating_add(part.length);
                }
                if let Some(axis) = first.axis {
                    slices_fit &= !self.inputs[index].shape[axis].contradicts(end);
                }
                if !slices_fit {
                    return refuse(
                        "is used in slices that overlap, leave gaps, or mix initial_h with \
                         initial_c; supported: one slice for each layer, which together cover it"
                            .into(),
                    );
                }
                let layers = uses.iter().map(|u| u.layer).collect();
                if first.cell {
                    Role::InitialCell(layers)
                } else {
                    Role::InitialHidden(layers)
                }
            }
        };
        let mut axes = Vec::with_capacity(self.meanings[index].len());
        for (axis, meaning) in self.meanings[index].iter().enumerate() {
            axes.push(match meaning {
                Some(meaning) => vec![*meaning],
                None if self.inputs[index].shape[axis].is(1) => vec![Axis::One],
                None => return refuse(format!("has an axis {axis} that no node uses")),
            });
        }
        Ok(Port {
            name: name.clone(),
            role,
            axes,
            optional: false,
        })
    }
}
