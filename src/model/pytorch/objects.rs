//! The tensors of a pickle, by their names: the keys on the way to them, joined by dots.
//!
//! ```text
//! dictionary, object of a class     its items, or its attributes
//! list, tuple                       its elements, by their indices
//! module (torch.nn.Module)          its parameters, buffers and modules, named as in state_dict()
//! tensor, array of NumPy            an entry
//! another call that takes tensors   unread: its name and type
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::arrays::array;
use super::container::{Checkpoint, Storages};
use super::pickle::{Call, Id, MAX_NAME, Pickle, Value};
use super::storage::{Missing, Storage, of_dtype};
use super::width;
use crate::model::safetensors::{Entry, ModuleOptions, Stated};

/// Most values on the ways to all tensors. Values that several others hold count each time.
const MAX_STEPS: usize = 1 << 23;

/// Python itself gives up at about 1000.
const MAX_DEPTH: usize = 400;

/// The tables of every module.
const TABLES: [&str; 3] = ["_parameters", "_buffers", "_modules"];

/// The tensors of a pickle.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub entries: Vec<(String, Entry<'a>)>,
    /// Objects that hold numbers but are not read, and their types.
    pub unread: BTreeMap<String, String>,
    /// Those of modules that are not the default.
    pub modules: BTreeMap<String, ModuleOptions>,
}

/// Finds them.
///
/// # Errors
/// The file contradicts itself, or holds too many values.
pub(super) fn tensors<'a>(file: &Checkpoint<'a>) -> Result<Found<'a>, String> {
    let pickle = &file.pickle;
    let mut walk = Walk {
        pickle,
        storages: &file.storages,
        max_copied: file.length.saturating_mul(4),
        found: Found::default(),
        path: Vec::new(),
        open: HashSet::new(),
        decoded: HashMap::new(),
        steps: 0,
        copied: 0,
    };
    walk.visit(pickle.root)?;
    Ok(walk.found)
}

struct Walk<'p, 'a> {
    pickle: &'p Pickle<'a>,
    storages: &'p Storages<'a>,
    max_copied: usize,
    found: Found<'a>,
    path: Vec<String>,
    /// The values on the way: objects may hold each other.
    open: HashSet<Id>,
    /// Tensors with bytes of their own: a value may be in many places of a file, as shared weights
    /// are.
    decoded: HashMap<Id, Entry<'a>>,
    steps: usize,
    /// Bytes that were copied, decoded or parsed: names, and values that no slice of the file has.
    copied: usize,
}

impl<'a> Walk<'_, 'a> {
    fn visit(&mut self, id: Id) -> Result<(), String> {
        self.steps += 1;
        let is_copied = self.copied > self.max_copied;
        if is_copied || self.steps > MAX_STEPS || self.open.len() > MAX_DEPTH {
            return Err("its objects hold each other too often or too deeply".into());
        }
        let is_leaf = !matches!(
            self.pickle.get(id),
            Value::Dict(_) | Value::List(_) | Value::Tuple(_) | Value::Call(_)
        );
        if is_leaf || !self.open.insert(id) {
            return Ok(());
        }
        self.visit_new(id)?;
        self.open.remove(&id);
        Ok(())
    }

    fn visit_new(&mut self, id: Id) -> Result<(), String> {
        let pickle = self.pickle;
        match pickle.get(id) {
            Value::Dict(items) => self.visit_items(items),
            Value::List(elements) | Value::Tuple(elements) => self.visit_elements(elements),
            Value::Call(call) => match self.decoded.get(&id) {
                Some(entry) => self.add(Ok(entry.clone())),
                None => self.visit_new_call(id, call),
            },
            _ => Ok(()),
        }
    }

    /// Keeps what it decodes.
    fn visit_new_call(&mut self, id: Id, call: &Call) -> Result<(), String> {
        let earlier = self.found.entries.len();
        self.visit_call(call)?;
        if let [(name, entry)] = &self.found.entries[earlier..]
            && entry.is_own()
            && *name == self.name()
        {
            self.decoded.insert(id, entry.clone());
        }
        Ok(())
    }

    fn visit_items(&mut self, items: &[(Id, Id)]) -> Result<(), String> {
        items
            .iter()
            .enumerate()
            .try_for_each(|(index, &(key, value))| {
                let name = match self.pickle.get(key) {
                    Value::Int(number) => number.to_string(),
                    _ => match self.pickle.text(key) {
                        Some(text) => {
                            self.steps += text.len() / 64;
                            text.to_owned()
                        }
                        None => format!("?{index}"),
                    },
                };
                self.visit_named(name, value)
            })
    }

    fn visit_elements(&mut self, elements: &[Id]) -> Result<(), String> {
        let mut elements = elements.iter().enumerate();
        elements.try_for_each(|(index, &id)| self.visit_named(index.to_string(), id))
    }

    fn visit_named(&mut self, name: String, id: Id) -> Result<(), String> {
        self.path.push(name);
        self.visit(id)?;
        self.path.pop();
        Ok(())
    }

    fn visit_call(&mut self, call: &Call) -> Result<(), String> {
        let pickle = self.pickle;
        if let Some(array) = array(pickle, call, &mut self.copied) {
            return self.add(array);
        }
        let arguments = pickle.elements(call.arguments).unwrap_or_default();
        let (module, name) = pickle.global(call.callable).unwrap_or_default();
        match (name, arguments) {
            ("_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3", _) => {
                return self.add_tensor(name, arguments);
            }
            // A tensor with attributes, or of another device, or of a class of its own.
            (
                "_rebuild_parameter"
                | "_rebuild_parameter_with_state"
                | "_rebuild_device_tensor_from_numpy"
                | "_rebuild_device_tensor_from_cpu_tensor"
                | "_rebuild_xla_tensor"
                | "Parameter"
                | "Variable",
                &[tensor, ..],
            ) if module.starts_with("torch") => return self.visit(tensor),
            // One within another would be a recursion without bounds.
            ("_rebuild_from_type_v2", &[callable, _, arguments, ..])
                if pickle
                    .global(callable)
                    .is_some_and(|(_, inner)| inner != name) =>
            {
                return self.visit_call(&Call {
                    callable,
                    arguments,
                    ..Call::default()
                });
            }
            ("OrderedDict" | "dict", &[pairs]) if call.items.is_empty() => {
                return self.visit_pairs(pairs);
            }
            ("list" | "tuple" | "set" | "frozenset" | "deque", &[elements, ..]) => {
                return self.visit(elements);
            }
            // A class of Python 2, with the dictionary or list that it is derived from.
            ("_reconstructor", &[_, _, base]) if call.items.is_empty() && call.list.is_empty() => {
                self.visit(base)?;
            }
            _ => {}
        }
        if !call.items.is_empty() {
            return self.visit_items(&call.items);
        }
        if !call.list.is_empty() {
            return self.visit_elements(&call.list);
        }
        match call.state {
            Some(state) => self.visit_state(state),
            None if self.holds_numbers(call.arguments, 0) => {
                self.add(Err(Missing::Unread(format!("{module}.{name}"))))
            }
            None => Ok(()),
        }
    }

    /// The attributes of an object.
    fn visit_state(&mut self, state: Id) -> Result<(), String> {
        let pickle = self.pickle;
        let parts = match pickle.get(state) {
            Value::Dict(_) => vec![state],
            // Of a class with slots: its attributes, or none, and its slots.
            Value::Tuple(parts) if parts.len() == 2 => parts.clone(),
            _ => Vec::new(),
        };
        parts
            .into_iter()
            .try_for_each(|part| match pickle.get(part) {
                Value::Dict(attributes) => self.visit_attributes(attributes),
                _ => Ok(()),
            })
    }

    fn visit_attributes(&mut self, attributes: &[(Id, Id)]) -> Result<(), String> {
        let pickle = self.pickle;
        self.steps += 8 * attributes.len();
        let attribute = |name: &str| {
            let mut of_name = attributes.iter();
            let found = of_name.rfind(|(key, _)| pickle.text(*key) == Some(name));
            found.map(|&(_, value)| value)
        };
        let [Some(parameters), Some(buffers), Some(modules)] = TABLES.map(attribute) else {
            return self.visit_items(attributes);
        };
        let text = |name| attribute(name).and_then(|value| pickle.text(value));
        let value = |name| attribute(name).map(|value| pickle.get(value));
        // A layer has a mode, a cell a nonlinearity. Others may have a mode of another meaning.
        let is_relu = match (text("mode"), text("nonlinearity")) {
            (Some("RNN_RELU"), _) => Stated::Yes,
            (Some("RNN_TANH" | "LSTM" | "GRU"), _) => Stated::No,
            (_, Some("relu")) => Stated::Yes,
            (_, Some("tanh")) => Stated::No,
            _ => match value("nonlinearity") {
                None | Some(Value::None) => Stated::No,
                Some(_) => Stated::Unknown,
            },
        };
        let batch_first = match value("batch_first") {
            None | Some(Value::None | Value::Bool(false) | Value::Int(0)) => Stated::No,
            Some(Value::Bool(true) | Value::Int(1)) => Stated::Yes,
            Some(_) => Stated::Unknown,
        };
        let options = ModuleOptions {
            is_relu,
            batch_first,
        };
        if options != ModuleOptions::default() {
            let name = self.name();
            self.copied = self.copied.saturating_add(name.len());
            self.found.modules.insert(name, options);
        }
        self.visit(parameters)?;
        self.visit_buffers(buffers, attribute("_non_persistent_buffers_set"))?;
        self.visit(modules)
    }

    /// Those that `state_dict()` has.
    fn visit_buffers(&mut self, buffers: Id, left_out: Option<Id>) -> Result<(), String> {
        let pickle = self.pickle;
        let names = left_out.and_then(|names| match pickle.get(names) {
            Value::Call(call) => pickle.elements(*pickle.elements(call.arguments)?.first()?),
            _ => pickle.elements(names),
        });
        let names = names.unwrap_or_default();
        let items = match pickle.get(buffers) {
            Value::Dict(items) => items,
            Value::Call(call) => &call.items,
            _ => return Ok(()),
        };
        self.steps += (names.len() + items.len()) * (MAX_NAME / 64);
        let names = names.iter().filter_map(|&name| pickle.text(name));
        let left_out: HashSet<&str> = names.collect();
        let kept = items.iter().filter(|(key, _)| {
            let name = pickle.text(*key);
            name.is_none_or(|name| !left_out.contains(name))
        });
        let kept: Vec<(Id, Id)> = kept.copied().collect();
        self.visit_items(&kept)
    }

    /// `OrderedDict([[key, value], …])` of Python 2, or a copy of a dictionary.
    fn visit_pairs(&mut self, pairs: Id) -> Result<(), String> {
        let pickle = self.pickle;
        let Value::List(elements) = pickle.get(pairs) else {
            return self.visit(pairs);
        };
        self.steps += elements.len();
        let pairs = elements
            .iter()
            .filter_map(|&pair| match *pickle.elements(pair)? {
                [key, value] => Some((key, value)),
                _ => None,
            });
        let pairs: Vec<(Id, Id)> = pairs.collect();
        self.visit_items(&pairs)
    }

    /// Whether arguments of a call have tensors or storages among them.
    fn holds_numbers(&mut self, id: Id, depth: usize) -> bool {
        self.steps += 1;
        match self.pickle.get(id) {
            Value::Persistent(_) => true,
            Value::Tuple(all) | Value::List(all) if depth < 4 => all
                .iter()
                .take(16)
                .any(|&id| self.holds_numbers(id, depth + 1)),
            Value::Call(call) if depth < 4 => {
                let name = self.pickle.global(call.callable).unwrap_or_default().1;
                name.starts_with("_rebuild_") || self.holds_numbers(call.arguments, depth + 1)
            }
            _ => false,
        }
    }

    /// `_rebuild_tensor(storage, offset, sizes, strides, …)`; the seventh argument of version 2 has
    /// the flags of a view, that of version 3 is the type, before the flags.
    fn add_tensor(&mut self, call: &str, arguments: &[Id]) -> Result<(), String> {
        let entry = self.tensor(call, arguments);
        self.add(entry)
    }

    fn tensor(&mut self, call: &str, arguments: &[Id]) -> Result<Entry<'a>, Missing> {
        let pickle = self.pickle;
        let name = self.name();
        let malformed = |why: &str| Missing::Malformed(format!("tensor {name:?} {why}"));
        let Some(&[storage, offset, sizes, strides]) = arguments.first_chunk() else {
            return Err(malformed("has too few properties"));
        };
        let flags = arguments.get(if call == "_rebuild_tensor_v3" { 7 } else { 6 });
        let flags = flags.map(|&flags| pickle.get(flags));
        if matches!(flags, Some(Value::Dict(flags)) if !flags.is_empty()) {
            let of = "torch.Tensor (a negated or conjugated view; in Python, load the state_dict() \
                      and save it with resolve_neg() or resolve_conj() of it)";
            return Err(Missing::Unread(of.into()));
        }
        let storage = Storage::read(pickle, self.storages, storage, &mut self.copied);
        let storage = storage.ok_or_else(|| malformed("has no storage"))??;
        let dtype = match arguments.get(6) {
            Some(&id) if call == "_rebuild_tensor_v3" => {
                let (module, name) = pickle.global(id).unwrap_or_default();
                let unread = || Missing::Unread(format!("{module}.{name}"));
                of_dtype(name).ok_or_else(unread)?
            }
            _ => storage.dtype.ok_or_else(|| malformed("has no type"))?,
        };
        let sizes = pickle
            .sizes(sizes)
            .ok_or_else(|| malformed("has no shape"))?;
        let strides = pickle
            .sizes(strides)
            .ok_or_else(|| malformed("has no strides"))?;
        let skipped = pickle
            .size(offset)
            .and_then(|offset| offset.checked_mul(width(dtype)));
        let beyond = || malformed("lies beyond the end of its storage");
        let skipped = skipped.filter(|&skipped| skipped <= storage.bytes.len());
        let skipped = skipped.ok_or_else(beyond)?;
        let bytes = match storage.bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[skipped..]),
            Cow::Owned(mut bytes) => Cow::Owned(bytes.split_off(skipped)),
        };
        Entry::strided(dtype, sizes, strides, bytes).ok_or_else(beyond)
    }

    fn add(&mut self, entry: Result<Entry<'a>, Missing>) -> Result<(), String> {
        let name = self.name();
        self.copied = self.copied.saturating_add(name.len());
        match entry {
            Ok(entry) => self.found.entries.push((name, entry)),
            Err(Missing::Unread(of)) => {
                self.copied = self.copied.saturating_add(of.len());
                self.found.unread.insert(name, of);
            }
            Err(Missing::Malformed(why)) => return Err(why),
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.path.join(".")
    }
}
