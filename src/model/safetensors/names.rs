//! The names that checkpoints give to the tensors of recurrent layers, as those of `torch.nn.LSTM`.
//!
//! ```text
//! weight_ih                          of a cell (torch.nn.LSTMCell): that of layer 0
//! weight_hh_l0_raw                   weight drop: the trained weight; the one without _raw is the
//!                                    last one that was dropped, and is not read
//! weight_ih_l0_g, weight_ih_l0_v     weight normalisation: g · v / ‖v‖, the norm of each row
//! parametrizations.weight_ih_l0.     the same, in its newer form
//!     original0, original1
//! weight_ih_l0_orig, _mask           pruning: their product
//! ```
//!
//! Another parametrisation of such a tensor is refused: the plain tensor beside it may not be the
//! trained one.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Entry, Place};
use super::layer_tensors::TensorName;
use super::tensors::{Tensors, tensor_error};
use crate::model::LoadError;

/// The origin of a tensor with a canonical name.
pub(super) enum Source {
    /// The tensor of this name in the file.
    Stored(String),
    Computed(Entry<'static>),
}

/// A tensor that a parametrisation has replaced.
#[derive(Debug, Default)]
struct Parts<'n> {
    raw: Option<&'n str>,
    gain: Option<&'n str>,
    direction: Option<&'n str>,
    original: Option<&'n str>,
    mask: Option<&'n str>,
    /// Of an unknown kind.
    other: Option<&'n str>,
}

impl<'n> Parts<'n> {
    /// The names of all of a known kind.
    fn known(&self) -> impl Iterator<Item = &'n str> {
        let all = [
            self.raw,
            self.gain,
            self.direction,
            self.original,
            self.mask,
        ];
        all.into_iter().flatten()
    }

    /// Where the values of each are.
    fn places(&self, tensors: &Tensors<'_>) -> Places {
        let parts = [
            self.raw,
            self.gain,
            self.direction,
            self.original,
            self.mask,
        ];
        parts.map(|part| tensors.place(part?))
    }
}

type Places = [Option<Place>; 5];

/// The canonical names that differ from those of the file, with their origins, and the names of the
/// file that are read no more.
#[derive(Default)]
pub(super) struct Renamed {
    pub sources: BTreeMap<String, Source>,
    pub replaced: BTreeSet<String>,
}

/// # Errors
/// [`LoadError::Tensor`] for a parametrisation that is not supported.
pub(super) fn rename(tensors: &Tensors<'_>) -> Result<Renamed, LoadError> {
    let names: BTreeSet<&str> = tensors.names().collect();
    let mut renamed = Renamed::default();
    let mut groups: BTreeMap<String, Parts<'_>> = BTreeMap::new();
    for &name in &names {
        if let Some((base, part)) = parametrised(name) {
            let parts = groups.entry(base).or_default();
            *part(parts) = Some(name);
        } else if let Some(layer) = of_cell(name)
            && !names.contains(layer.as_str())
        {
            renamed.replaced.insert(name.to_owned());
            renamed
                .sources
                .insert(layer, Source::Stored(name.to_owned()));
        }
    }
    // Each is computed and kept. Those of several names for the same values are one.
    let mut counted = BTreeSet::new();
    let different = groups
        .values()
        .filter(|parts| counted.insert(parts.places(tensors)));
    let different: Vec<&str> = different.flat_map(Parts::known).collect();
    tensors.check_size(different.into_iter())?;
    let mut computed = BTreeMap::new();
    for (base, parts) in groups {
        // A suffix that the name has by chance.
        let Some((name, source)) = resolve(tensors, &names, &base, &parts, &mut computed)? else {
            continue;
        };
        renamed.replaced.extend(parts.known().map(str::to_owned));
        // A cell's weights may be parametrised, too.
        let canonical = of_cell(&name).unwrap_or(name.clone());
        renamed.replaced.insert(name);
        renamed.sources.insert(canonical, source);
    }
    Ok(renamed)
}

/// The name that a cell's tensor has in layer 0.
fn of_cell(name: &str) -> Option<String> {
    let kinds = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
    let (_, last) = name.rsplit_once('.').unwrap_or(("", name));
    kinds.contains(&last).then(|| format!("{name}_l0"))
}

type Part = for<'p, 'n> fn(&'p mut Parts<'n>) -> &'p mut Option<&'n str>;

/// The name of the tensor that a parametrisation has replaced by this one, among others.
fn parametrised(name: &str) -> Option<(String, Part)> {
    const NEW: &str = "parametrizations.";
    let at = name
        .find(NEW)
        .filter(|&at| at == 0 || name[..at].ends_with('.'));
    if let Some(at) = at {
        let (tensor, part) = name[at + NEW.len()..].split_once('.')?;
        let base = format!("{}{tensor}", &name[..at]);
        let part: Part = match part {
            "original0" => |parts| &mut parts.gain,
            "original1" => |parts| &mut parts.direction,
            _ => |parts| &mut parts.other,
        };
        return is_weight(&base).then_some((base, part));
    }
    let endings: [(&str, Part); 6] = [
        ("_raw", |parts| &mut parts.raw),
        ("_g", |parts| &mut parts.gain),
        ("_v", |parts| &mut parts.direction),
        ("_orig", |parts| &mut parts.original),
        ("_mask", |parts| &mut parts.mask),
        ("_u", |parts| &mut parts.other),
    ];
    endings.into_iter().find_map(|(ending, part)| {
        let base = name.strip_suffix(ending)?;
        is_weight(base).then(|| (base.to_owned(), part))
    })
}

/// Whether a name is that of a weight or bias of a layer or cell.
fn is_weight(name: &str) -> bool {
    TensorName::parse(name).is_some() || of_cell(name).is_some()
}

/// The name and the origin of a replaced tensor.
fn resolve(
    tensors: &Tensors<'_>,
    names: &BTreeSet<&str>,
    base: &str,
    parts: &Parts<'_>,
    computed: &mut BTreeMap<Places, Entry<'static>>,
) -> Result<Option<(String, Source)>, LoadError> {
    type Computed = Result<Entry<'static>, LoadError>;
    let mut once = |compute: &dyn Fn() -> Computed| -> Computed {
        let places = parts.places(tensors);
        if let Some(known) = computed.get(&places) {
            return Ok(known.clone());
        }
        let new = compute()?;
        computed.insert(places, new.clone());
        Ok(new)
    };
    let refused = |name: &str, why: &str| {
        let advice = "save the plain weights, in PyTorch by \
             torch.nn.utils.parametrize.remove_parametrizations or \
             torch.nn.utils.remove_weight_norm";
        Err(tensor_error(name, format!("{why}; {advice}")))
    };
    match *parts {
        Parts {
            raw: Some(raw),
            gain: None,
            direction: None,
            original: None,
            mask: None,
            other: None,
        } => {
            // The wrapped module has the other tensors of the layer.
            let inner = base
                .rsplit_once('.')
                .map_or(format!("module.{base}"), |(prefix, last)| {
                    format!("{prefix}.module.{last}")
                });
            let sibling = inner
                .rsplit_once('.')
                .map(|(prefix, _)| format!("{prefix}."));
            let has_siblings = sibling.is_some_and(|prefix| {
                names
                    .iter()
                    .any(|name| name.starts_with(&prefix) && is_weight(name))
            });
            let name = if has_siblings { inner } else { base.to_owned() };
            Ok(Some((name, Source::Stored(raw.to_owned()))))
        }
        Parts {
            raw: None,
            gain: Some(gain),
            direction: Some(direction),
            original: None,
            mask: None,
            other: None,
        } => {
            let weight = once(&|| normalised(tensors, gain, direction))?;
            Ok(Some((base.to_owned(), Source::Computed(weight))))
        }
        Parts {
            raw: None,
            gain: None,
            direction: None,
            original: Some(original),
            mask: Some(mask),
            other: None,
        } => {
            let weight = once(&|| pruned(tensors, original, mask))?;
            Ok(Some((base.to_owned(), Source::Computed(weight))))
        }
        Parts {
            other: Some(name), ..
        } => refused(name, "is part of a parametrisation that is not supported"),
        _ => match parts.known().next() {
            Some(name) => refused(name, "is one part of a parametrisation without the others"),
            None => Ok(None),
        },
    }
}

/// `gain · direction / ‖direction‖`, the norm of each row, or of the whole matrix if there is one
/// gain (`torch.nn.utils.weight_norm`).
fn normalised(
    tensors: &Tensors<'_>,
    gain: &str,
    direction: &str,
) -> Result<Entry<'static>, LoadError> {
    let shape = tensors.shape(direction).unwrap_or_default().to_vec();
    let values = tensors.floats(direction)?;
    let gains = tensors.floats(gain)?;
    let rows = shape.first().copied().unwrap_or(1);
    let norm = |row: &[f32]| {
        let squares = row.iter().map(|&value| f64::from(value) * f64::from(value));
        squares.sum::<f64>().sqrt()
    };
    let scaled = |row: &[f32], gain: f32, norm: f64| -> Vec<f32> {
        let scale = f64::from(gain) / norm;
        row.iter()
            .map(|&value| (f64::from(value) * scale) as f32)
            .collect()
    };
    let width = values.len() / rows.max(1);
    let weights = match gains.as_slice() {
        &[gain] if rows != 1 => scaled(&values, gain, norm(&values)),
        gains if gains.len() == rows && width > 0 => {
            let rows = values.chunks_exact(width).zip(gains);
            rows.flat_map(|(row, &gain)| scaled(row, gain, norm(row)))
                .collect()
        }
        gains => {
            let reason = format!("has {} values; {direction:?} has {rows} rows", gains.len());
            return Err(tensor_error(gain, reason));
        }
    };
    Ok(Entry::of_f32(shape, weights))
}

fn pruned(tensors: &Tensors<'_>, original: &str, mask: &str) -> Result<Entry<'static>, LoadError> {
    let shape = tensors.shape(original).unwrap_or_default().to_vec();
    if tensors.shape(mask) != Some(shape.as_slice()) {
        let reason = format!("has another shape than {original:?}");
        return Err(tensor_error(mask, reason));
    }
    let (values, mask) = (tensors.floats(original)?, tensors.floats(mask)?);
    let pairs = values.iter().zip(mask);
    Ok(Entry::of_f32(
        shape,
        pairs.map(|(value, mask)| value * mask).collect(),
    ))
}
