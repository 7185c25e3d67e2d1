//! Finds the tensors of a recurrent stack by name and checks their shapes against each other before
//! any values are read.

use std::collections::{BTreeMap, BTreeSet};

use super::layer_tensors::{DirectionId, TensorKind, TensorName};
use super::metadata::{self, DirectionMetadata, LayerMetadata, Metadata};
use super::tensors::{ModuleOptions, Shape, Stated, Tensors, scale_name, tensor_error};
use crate::model::{BatchNorm, Cell, CellKind, LoadError, Merge, ModelError, Peepholes, Weights};

const SUPPORTED: &str = "supported names are weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, \
     weight_hr_l0, peephole_l0, norm_weight_l0, norm_bias_l0, norm_mean_l0 and norm_var_l0, for \
     every layer number, with or without _reverse, and with _scale after a weight of I8";

/// PyTorch's default.
const DEFAULT_NORM_EPS: f32 = 1e-5;

/// The cell that a layer must have, and what states it, for error messages.
pub(super) struct ExpectedCell {
    pub cell: Cell,
    pub stated_by: &'static str,
}

/// A property of modules, and the option that can give it in their place.
pub(super) struct ModuleProperty {
    of: fn(ModuleOptions) -> Stated,
    name: &'static str,
    option: &'static str,
}

pub(super) const IS_RELU: ModuleProperty = ModuleProperty {
    of: |module| module.is_relu,
    name: "nonlinearity",
    option: "SafetensorsOptions::cell (--cell)",
};

pub(super) const BATCH_FIRST: ModuleProperty = ModuleProperty {
    of: |module| module.batch_first,
    name: "batch_first",
    option: "SafetensorsOptions::batch_first (--batch-first)",
};

impl Tensors<'_> {
    /// The prefixes of the recurrent stacks, and the names of the tensors that belong to none.
    ///
    /// ```
    /// # use gatestream::model::{Lstm, Tensors};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.safetensors");
    /// # Lstm::new(3, 4).random(1)?.save_safetensors(&path)?;
    /// let bytes = std::fs::read(&path)?;
    /// let tensors = Tensors::from_bytes(&bytes)?;
    /// assert_eq!(tensors.stacks()?, (vec![String::new()], Vec::new()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LoadError::Tensor`] for a parametrisation that is not supported.
    pub fn stacks(&self) -> Result<(Vec<String>, Vec<String>), LoadError> {
        let canonical = self.canonical()?;
        let (mut prefixes, mut others) = (BTreeSet::new(), Vec::new());
        for name in canonical.names() {
            match TensorName::parse(name) {
                Some(parsed) => drop(prefixes.insert(parsed.prefix.to_owned())),
                None => others.push(name.to_owned()),
            }
        }
        Ok((prefixes.into_iter().collect(), others))
    }
}

/// The error for an object of a checkpoint that is no plain tensor.
fn unread(name: &str, of: &str) -> LoadError {
    let mut reason = format!("is of the type {of}, which is not read");
    // The type of a view comes with its own advice.
    if !of.contains("resolve_neg()") {
        reason += "; in Python, load the model, and save the state_dict() of plain tensors that it \
                   had before they were quantised or made sparse";
    }
    tensor_error(name, reason)
}

type Members = BTreeSet<(DirectionId, TensorKind)>;

/// The stack of a prefix.
struct Selected<'n> {
    prefix: &'n str,
    members: Members,
    /// Of a list of modules: the prefix of each layer.
    list: Option<Vec<String>>,
}

/// The layers of a list of modules with one layer each, which has this prefix: `rnns.` for
/// `rnns.0.` and `rnns.1.`, or for `rnns.0.module.` and `rnns.1.module.`.
fn list<'n>(stacks: &BTreeMap<&'n str, Members>, wanted: &str) -> Option<Selected<'n>> {
    let dot = if wanted.is_empty() || wanted.ends_with('.') {
        ""
    } else {
        "."
    };
    let of_list = |prefix: &&&str| prefix.starts_with(&format!("{wanted}{dot}0."));
    let first = *stacks.keys().find(of_list)?;
    let rest = &first[wanted.len() + dot.len() + "0".len()..];
    let names = (0..).map(|index| format!("{wanted}{dot}{index}{rest}"));
    let names: Vec<String> = names
        .take_while(|name| stacks.contains_key(name.as_str()))
        .collect();
    let mut all = Members::new();
    for (layer, name) in names.iter().enumerate() {
        for &(direction, kind) in &stacks[name.as_str()] {
            if direction.layer != 0 {
                return None;
            }
            all.insert((DirectionId { layer, ..direction }, kind));
        }
    }
    // Each module of the list is one of its layers.
    let is_of_list = |prefix: &str| prefix.starts_with(&format!("{wanted}{dot}"));
    let others = stacks.keys().filter(|prefix| is_of_list(prefix)).count();
    let prefix = &first[..wanted.len() + dot.len()];
    (others == names.len()).then_some(Selected {
        prefix,
        members: all,
        list: Some(names),
    })
}

/// The tensors with one prefix.
pub(super) struct Stack<'t> {
    tensors: &'t Tensors<'t>,
    metadata: &'t Metadata,
    prefix: &'t str,
    /// Of a list of modules: the prefix of each layer.
    list: Option<Vec<String>>,
    /// Sorted: layers from 0, each with forward, reverse, or both.
    directions: Vec<DirectionId>,
    has_biases: bool,
}

impl<'t> Stack<'t> {
    /// Selects the stack with the prefix `wanted`, or the only stack of the file.
    pub fn find(
        tensors: &'t Tensors<'t>,
        metadata: &'t Metadata,
        wanted: Option<&str>,
    ) -> Result<Stack<'t>, LoadError> {
        let mut stacks: BTreeMap<&str, Members> = BTreeMap::new();
        let mut others = Vec::new();
        for name in tensors.names() {
            match TensorName::parse(name) {
                Some(parsed) => {
                    let stack = stacks.entry(parsed.prefix).or_default();
                    stack.insert((parsed.direction, parsed.kind));
                }
                None => others.push(name),
            }
        }
        let mut kinds = stacks.values().flatten().map(|(_, kind)| kind);
        let is_normalised = kinds.any(|kind| TensorKind::NORM.contains(kind));
        if let Some(eps) = metadata.norm_eps
            && !is_normalised
        {
            let supported = "this entry only in a file with norm_weight_l0 and its like";
            return Err(metadata::error(
                metadata::NORM_EPS,
                &eps.to_string(),
                supported,
            ));
        }
        let prefixes = || stacks.keys().map(|p| p.to_string()).collect();
        let of_module = |(&prefix, members): (&&'t str, &Members)| Selected {
            prefix,
            members: members.clone(),
            list: None,
        };
        let selected = match wanted {
            Some(wanted) => [wanted, &format!("{wanted}.")]
                .into_iter()
                .find_map(|prefix| stacks.get_key_value(prefix))
                .map(of_module)
                .or_else(|| list(&stacks, wanted)),
            None if stacks.len() > 1 => {
                let first = stacks.keys().next().copied().unwrap_or_default();
                let before = first.split_once("0.").map(|(before, _)| before);
                let of_list = before.filter(|before| list(&stacks, before).is_some());
                return Err(LoadError::SeveralStacks {
                    prefixes: prefixes(),
                    list: of_list.map(str::to_owned),
                });
            }
            None => stacks.first_key_value().map(of_module),
        };
        let Some(selected) = selected else {
            if stacks.is_empty()
                && let Some((name, of)) = tensors.unread().next()
            {
                return Err(unread(name, of));
            }
            return Err(LoadError::NoStack {
                wanted: wanted.map(Into::into),
                found: prefixes(),
            });
        };
        let Selected {
            prefix,
            members,
            list,
        } = selected;
        let is_of_module = |name: &str, prefix: &str| {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| !rest.contains('.'))
        };
        let is_own = |name: &str| match &list {
            None => is_of_module(name, prefix),
            Some(modules) => modules.iter().any(|module| is_of_module(name, module)),
        };
        let is_layer = |name: &str| TensorName::parse(name).is_some() && is_own(name);
        if let Some((name, of)) = tensors.unread().find(|(name, _)| is_layer(name)) {
            return Err(unread(name, of));
        }
        let foreign = (others.iter()).find(|name| wanted.is_none() || is_own(name));
        if let Some(name) = foreign {
            let mut reason = format!("is not part of a recurrent layer; {SUPPORTED}");
            if !others.iter().any(|name| is_own(name)) {
                reason += &format!("; select the prefix {prefix:?} to load only its layers");
            }
            return Err(tensor_error(name, reason));
        }
        let mut directions: Vec<DirectionId> = members.iter().map(|&(id, _)| id).collect();
        directions.dedup();
        let is_bias = |kind| matches!(kind, TensorKind::InputBias | TensorKind::RecurrentBias);
        let stack = Stack {
            tensors,
            metadata,
            prefix,
            list,
            directions,
            has_biases: members.iter().any(|&(_, kind)| is_bias(kind)),
        };
        match &metadata.layers {
            Some(layers) => stack.match_described(layers)?,
            None => stack.match_uniform()?,
        }
        Ok(stack)
    }

    /// Requires exactly the directions that the metadata describes.
    fn match_described(&self, layers: &[LayerMetadata]) -> Result<(), LoadError> {
        let described = layers.iter().enumerate().flat_map(|(layer, metadata)| {
            let forward = metadata.forward.is_some().then_some(false);
            let reverse = metadata.reverse.is_some().then_some(true);
            let present = forward.into_iter().chain(reverse);
            present.map(move |reverse| DirectionId { layer, reverse })
        });
        let mut found = self.directions.iter().copied();
        for expected in described {
            match found.next() {
                Some(id) if id < expected => return Err(self.undescribed(id)),
                Some(id) if id == expected => {}
                _ => {
                    let name = self.name(TensorKind::InputWeight, expected);
                    let key = metadata::LAYERS;
                    let reason = format!("is missing; the metadata {key:?} describes its layer");
                    return Err(tensor_error(&name, reason));
                }
            }
        }
        match found.next() {
            Some(id) => Err(self.undescribed(id)),
            None => Ok(()),
        }
    }

    fn undescribed(&self, id: DirectionId) -> LoadError {
        let names = TensorKind::ALL.map(|(kind, _)| self.name(kind, id));
        let present = names.iter().find(|n| self.tensors.shape(n).is_some());
        let reason = format!(
            "belongs to a layer or direction that the metadata {:?} does not describe",
            metadata::LAYERS
        );
        tensor_error(present.unwrap_or(&names[0]), reason)
    }

    /// Requires layers numbered from 0 without gaps, all with both directions or all with one.
    fn match_uniform(&self) -> Result<(), LoadError> {
        let bidirectional = self.directions.iter().any(|id| id.reverse);
        let missing = |id| {
            let reason = "is missing; layers are numbered from 0 without gaps, and either all or \
                 none have a _reverse";
            tensor_error(&self.name(TensorKind::InputWeight, id), reason.into())
        };
        let mut expected = DirectionId {
            layer: 0,
            reverse: false,
        };
        // Iterates over the directions found: a layer number of a hostile file may be huge.
        for &id in &self.directions {
            if id != expected {
                return Err(missing(expected));
            }
            expected = DirectionId {
                layer: id.layer + usize::from(!bidirectional || id.reverse),
                reverse: bidirectional && !id.reverse,
            };
        }
        if expected.reverse {
            return Err(missing(expected));
        }
        Ok(())
    }

    fn name(&self, kind: TensorKind, id: DirectionId) -> String {
        let reverse = if id.reverse { "_reverse" } else { "" };
        let module = self.list.as_ref().and_then(|list| list.get(id.layer));
        match module {
            Some(module) => format!("{module}{kind}_l0{reverse}"),
            None => format!("{}{kind}_l{}{reverse}", self.prefix, id.layer),
        }
    }

    /// The names that its tensors may have.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let kinds = TensorKind::ALL.iter();
        let all = self.directions.iter();
        all.flat_map(move |&id| kinds.clone().map(move |&(kind, _)| self.name(kind, id)))
    }

    /// Whether its pickled module, or all modules of its list, say that they have a property.
    ///
    /// # Errors
    /// [`LoadError::Tensor`]: they differ, or have an unknown value.
    pub fn of_modules(&self, property: &ModuleProperty) -> Result<bool, LoadError> {
        let stated = |id: &DirectionId| {
            let module = self.list.as_ref().and_then(|list| list.get(id.layer));
            let module = module.map_or(self.prefix, String::as_str);
            (property.of)(self.tensors.module_options(module))
        };
        let first = self.directions.first().map(stated).unwrap_or_default();
        let refused = |id: DirectionId, why: &str| {
            let ModuleProperty { name, option, .. } = property;
            let reason = format!("is of a module whose {name} {why}; give it by {option}");
            Err(tensor_error(
                &self.name(TensorKind::InputWeight, id),
                reason,
            ))
        };
        for &id in &self.directions {
            match stated(&id) {
                Stated::Unknown => return refused(id, "has an unknown value"),
                other if other != first => return refused(id, "is not that of the first"),
                _ => {}
            }
        }
        Ok(first == Stated::Yes)
    }

    /// The directions of each layer, forward first.
    pub fn layers(&self) -> impl Iterator<Item = &[DirectionId]> {
        self.directions.chunk_by(|a, b| a.layer == b.layer)
    }

    fn layer_metadata(&self, layer: usize) -> Option<&'t LayerMetadata> {
        self.metadata.layers.as_ref()?.get(layer)
    }

    pub fn direction_metadata(&self, id: DirectionId) -> Option<&'t DirectionMetadata> {
        let layer = self.layer_metadata(id.layer)?;
        if id.reverse {
            layer.reverse.as_ref()
        } else {
            layer.forward.as_ref()
        }
    }

    /// How the directions of a layer are merged.
    pub fn merge(&self, layer: usize) -> Merge {
        let merge = self.layer_metadata(layer).and_then(|layer| layer.merge);
        merge.unwrap_or(Merge::Concat)
    }

    /// Checks the shapes of one direction against each other, against `expected` (set by the first
    /// direction if neither options nor metadata give a cell) and against the features of the
    /// layer below. Returns the number of output features of this direction.
    pub fn check(
        &self,
        id: DirectionId,
        expected: &mut Option<ExpectedCell>,
        layer_input: Option<usize>,
    ) -> Result<usize, LoadError> {
        let name = |kind| self.name(kind, id);
        let matrix_shape = |kind| {
            self.tensors
                .weight_shape(&name(kind), self.metadata.precision)
        };
        let [rows, _] = matrix_shape(TensorKind::InputWeight)?;
        let [_, state] = matrix_shape(TensorKind::RecurrentWeight)?;
        let is_projected = self.has_projection(id);
        let (hidden, hidden_from) = if is_projected {
            let [_, hidden] = matrix_shape(TensorKind::Projection)?;
            (hidden, TensorKind::Projection)
        } else {
            (state, TensorKind::RecurrentWeight)
        };

        let stated = match self.direction_metadata(id) {
            Some(direction) => Some((direction.cell, "the metadata says")),
            None => (expected.as_ref()).map(|expected| (expected.cell, expected.stated_by)),
        };
        // Cells without metadata are PyTorch's, which differ in their number of rows.
        let mut cells =
            (stated.iter().map(|(cell, _)| *cell)).chain([Cell::LSTM, Cell::GRU, Cell::RNN]);
        let has_rows = |cell: &Cell| hidden.checked_mul(cell.kind().gates()) == Some(rows);
        let Some(cell) = cells.find(has_rows) else {
            let named = Cell::NAMED.iter();
            let supported = named.map(|of| format!("{} ({})", of.cell.kind().gates(), of.name));
            let reason = format!(
                "has {rows} rows for the hidden size {hidden} (the columns of {}); supported rows \
                 per hidden unit are {}; LSTM, GRU and RNN are recognised by shape, another cell \
                 is named by the metadata {:?} or by SafetensorsOptions::cell (--cell)",
                name(hidden_from),
                supported.collect::<Vec<_>>().join(", "),
                metadata::CELL
            );
            return Err(tensor_error(&name(TensorKind::InputWeight), reason));
        };
        let kind = cell.kind();
        if is_projected && kind != CellKind::Lstm {
            return Err(tensor_error(
                &name(TensorKind::Projection),
                format!("is a projection on {kind}; only lstm supports projections"),
            ));
        }
        let (expected_kind, stated_by) = match stated {
            Some((cell, stated_by)) => (cell.kind(), stated_by),
            None => {
                let stated_by = "the first layer is";
                *expected = Some(ExpectedCell { cell, stated_by });
                (kind, stated_by)
            }
        };
        if kind != expected_kind {
            return Err(tensor_error(
                &name(TensorKind::InputWeight),
                format!(
                    "has {rows} rows for the hidden size {hidden}, as {kind} has, but {stated_by} \
                     {expected_kind}"
                ),
            ));
        }

        if let Some(features) = layer_input {
            self.expect(TensorKind::InputWeight, id, &[rows, features])?;
        }
        self.expect(TensorKind::RecurrentWeight, id, &[rows, state])?;
        if is_projected {
            self.expect(TensorKind::Projection, id, &[state, hidden])?;
        }
        if self.has_biases {
            for kind in [TensorKind::InputBias, TensorKind::RecurrentBias] {
                if self.tensors.shape(&name(kind)).is_none() {
                    let reason = "is missing; all layers must have both biases, or none";
                    return Err(tensor_error(&name(kind), reason.into()));
                }
                self.tensors.vector_shape(&name(kind))?;
                self.expect(kind, id, &[rows])?;
            }
        }
        if self.tensors.shape(&name(TensorKind::Peephole)).is_some() {
            if kind != CellKind::Lstm {
                let reason = format!("is a peephole on {kind}; only lstm supports peepholes");
                return Err(tensor_error(&name(TensorKind::Peephole), reason));
            }
            self.tensors.matrix_shape(&name(TensorKind::Peephole))?;
            self.expect(TensorKind::Peephole, id, &[3, hidden])?;
        }
        if self.has_norm(id) {
            for kind in TensorKind::NORM {
                self.tensors.vector_shape(&name(kind))?;
                self.expect(kind, id, &[rows])?;
            }
        }
        let forward = DirectionId {
            reverse: false,
            ..id
        };
        if id.reverse && self.directions.binary_search(&forward).is_ok() {
            // The forward direction was checked before, so its tensors exist.
            for kind in [TensorKind::InputWeight, TensorKind::RecurrentWeight] {
                let shape = self
                    .tensors
                    .weight_shape(&self.name(kind, forward), self.metadata.precision)?;
                self.expect(kind, id, &shape)?;
            }
        }
        Ok(state)
    }

    /// Also true if only the projection's scale exists: reading the missing matrix then fails and
    /// names it.
    fn has_projection(&self, id: DirectionId) -> bool {
        let name = self.name(TensorKind::Projection, id);
        let names = [scale_name(&name), name];
        names.iter().any(|name| self.tensors.shape(name).is_some())
    }

    fn has_norm(&self, id: DirectionId) -> bool {
        let exists = |kind| self.tensors.shape(&self.name(kind, id)).is_some();
        TensorKind::NORM.into_iter().any(exists)
    }

    /// The batch normalisation of a direction that [`Stack::check`] accepted.
    fn norm(&self, id: DirectionId) -> Result<BatchNorm, LoadError> {
        let eps = self.metadata.norm_eps.unwrap_or(DEFAULT_NORM_EPS);
        let vector = |kind| self.tensors.vector(&self.name(kind, id));
        Ok(BatchNorm {
            mean: vector(TensorKind::NormMean)?,
            variance: vector(TensorKind::NormVariance)?,
            gamma: vector(TensorKind::NormWeight)?,
            beta: vector(TensorKind::NormBias)?,
            eps,
        })
    }

    fn expect(&self, kind: TensorKind, id: DirectionId, shape: &[usize]) -> Result<(), LoadError> {
        let name = self.name(kind, id);
        match self.tensors.shape(&name) {
            Some(found) if found != shape => Err(tensor_error(
                &name,
                format!(
                    "has shape {}; to match the other tensors it must be {}",
                    Shape(found),
                    Shape(shape)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Reads the weights of a direction that [`Stack::check`] accepted, with its batch
    /// normalisation folded into the input weights.
    pub fn weights(&self, id: DirectionId) -> Result<Weights, LoadError> {
        let matrix = |kind| {
            self.tensors
                .weight(&self.name(kind, id), self.metadata.precision)
        };
        let input = matrix(TensorKind::InputWeight)?;
        let bias = |kind| {
            if self.has_biases {
                self.tensors.vector(&self.name(kind, id))
            } else {
                Ok(vec![0.0; input.rows()])
            }
        };
        let projection = if self.has_projection(id) {
            Some(matrix(TensorKind::Projection)?)
        } else {
            None
        };
        let peephole_name = self.name(TensorKind::Peephole, id);
        let peepholes = if self.tensors.shape(&peephole_name).is_some() {
            let rows = self.tensors.matrix(&peephole_name)?;
            Some(Peepholes {
                input: rows.row(0).into_owned(),
                forget: rows.row(1).into_owned(),
                output: rows.row(2).into_owned(),
            })
        } else {
            None
        };
        let weights = Weights {
            recurrent: matrix(TensorKind::RecurrentWeight)?,
            input_bias: bias(TensorKind::InputBias)?,
            recurrent_bias: bias(TensorKind::RecurrentBias)?,
            peepholes,
            projection,
            input,
        };
        if self.has_norm(id) {
            (self.norm(id)?.fold(&weights)).map_err(|error| match error {
                ModelError::Variance { .. } => {
                    tensor_error(&self.name(TensorKind::NormVariance, id), error.to_string())
                }
                other => other.into(),
            })
        } else {
            Ok(weights)
        }
    }
}
