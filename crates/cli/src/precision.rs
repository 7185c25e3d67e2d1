//! `--precision`: one for the whole model, one for each layer, or the fastest within an error.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::model::ModelOrShape;
use super::sample::Sample;
use gatestream::model::{Layer, Model, Precision, UnknownPrecision};
use gatestream::tune::{Chosen, Mix, PrecisionOptions, PrecisionProgress, choose_precisions};
use gatestream_command::Failure;

/// Precisions of the command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Precisions {
    /// One for all layers.
    Same(Precision),
    /// One for each layer.
    Each(Vec<Precision>),
}

impl Precisions {
    /// The model in these precisions.
    ///
    /// # Errors
    /// As [`in_precisions`].
    pub fn of(&self, model: &Model) -> Result<Model, Failure> {
        Ok(match self {
            Precisions::Same(precision) => model.in_precision(*precision)?,
            Precisions::Each(precisions) => model.in_precisions(precisions)?,
        })
    }
}

impl FromStr for Precisions {
    type Err = String;

    fn from_str(text: &str) -> Result<Precisions, String> {
        if text.starts_with(AUTO) {
            return Err(
                "auto measures, and its choice may vary; let `tune` or `quantize` choose once, \
                 and name their choice here, as in int8,f32"
                    .into(),
            );
        }
        let each = text.split(',').map(|name| name.trim().parse());
        let each: Result<Vec<Precision>, UnknownPrecision> = each.collect();
        match each.map_err(|error| error.to_string())?.as_slice() {
            [one] => Ok(Precisions::Same(*one)),
            each => Ok(Precisions::Each(each.to_vec())),
        }
    }
}

/// Precisions of commands that can choose them by measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// Fixed.
    For(Precisions),
    /// The fastest mix whose output differs from that in f32 by at most this.
    Within(f64),
}

const AUTO: &str = "auto";

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Asked, String> {
        if text.split(',').skip(1).any(|part| part.starts_with(AUTO)) {
            return Err("auto:ERR applies to all layers; name no other precision".into());
        }
        let Some(most) = text.strip_prefix(AUTO) else {
            let asked = text.parse().map(Asked::For);
            return asked.map_err(|error: String| format!("{error}, {AUTO}:ERR"));
        };
        let most = most.strip_prefix(':').and_then(|most| most.parse().ok());
        let most = most.filter(|most: &f64| most.is_finite() && *most >= 0.0);
        let most = most.map(Asked::Within);
        most.ok_or_else(|| "auto needs the maximum error of the output, as in auto:0.01".into())
    }
}

/// The precisions of a model as on the command line; "mixed" where they differ within a layer.
pub fn name(model: &Model) -> String {
    let of_layer = |layer: &Layer| {
        let directions = layer.directions().iter();
        let mut all = directions.flat_map(|d| d.weights().precisions()).flatten();
        let first = all.next()?;
        all.all(|precision| precision == first).then_some(first)
    };
    let each: Option<Vec<Precision>> = model.layers().iter().map(of_layer).collect();
    each.map_or_else(|| "mixed".into(), |each| written(&each))
}

/// As [`Precisions`] are written.
pub fn written(precisions: &[Precision]) -> String {
    match precisions {
        [first, rest @ ..] if rest.iter().all(|p| p == first) => first.to_string(),
        _ => precisions
            .iter()
            .map(|p| p.name())
            .collect::<Vec<_>>()
            .join(","),
    }
}

/// The model with its weights in the precisions of the command line, if any.
///
/// # Errors
/// Weights that cannot be of such a precision; another number of precisions than layers.
pub fn in_precisions(model: Model, asked: Option<&Precisions>) -> Result<Model, Failure> {
    Ok(match asked {
        None => model,
        Some(Precisions::Same(precision)) => model.into_precision(*precision)?,
        Some(Precisions::Each(precisions)) => model.into_precisions(precisions)?,
    })
}

/// The precision of all recurrent regions of a graph.
///
/// # Errors
/// One for each layer: a graph has no such order.
#[cfg(feature = "network")]
pub fn of_graph(asked: Option<&Precisions>) -> Result<Option<Precision>, Failure> {
    match asked {
        None => Ok(None),
        Some(Precisions::Same(precision)) => Ok(Some(*precision)),
        Some(Precisions::Each(_)) => Err(Failure::usage(
            "a graph takes one --precision for all of its recurrent regions",
        )),
    }
}

/// `--precision` of commands that can choose by measurement.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MeasuredPrecision {
    /// Precision of weights and products: f32, bf16, int8; one for each layer, as in int8,bf16; or
    /// auto:ERR, the fastest mix whose output over the sample differs by at most ERR from that in
    /// f32 (default: that of the model, of shapes f32)
    #[arg(long, value_name = "P")]
    precision: Option<Asked>,
    /// Input for the error of auto, in the layout of `run`; states start from zero (default: 64
    /// steps of random values)
    #[arg(long, value_name = "X.npy", requires = "precision")]
    sample: Option<PathBuf>,
}

impl MeasuredPrecision {
    /// As [`of_graph`].
    ///
    /// # Errors
    /// As [`of_graph`]; `auto`.
    #[cfg(feature = "network")]
    pub fn of_graph(&self) -> Result<Option<Precision>, Failure> {
        match &self.precision {
            None => Ok(None),
            Some(Asked::For(precisions)) => of_graph(Some(precisions)),
            Some(Asked::Within(_)) => Err(Failure::usage(
                "--precision auto applies to a stack of layers; name one for a graph",
            )),
        }
    }

    /// The model of this source in these precisions, and the choice of `auto` as text, if it was
    /// asked for. `progress` may interrupt the choice.
    ///
    /// # Errors
    /// Those of [`in_precisions`] and [`choose_precisions`]; a sample without `auto`.
    pub fn of(
        &self,
        source: &ModelOrShape,
        model: Model,
        purpose: Purpose,
        progress: impl FnMut(&PrecisionProgress) -> ControlFlow<()> + Send,
    ) -> Result<(Model, Option<String>), Failure> {
        if self.sample.is_some() && !matches!(self.precision, Some(Asked::Within(_))) {
            return Err(Failure::usage(
                "--sample needs --precision auto:ERR, whose error it measures",
            ));
        }
        let most_error = match &self.precision {
            None => return Ok((model, None)),
            Some(Asked::For(asked)) => {
                let model = in_precisions(model, Some(asked)).map_err(|f| source.failed(f))?;
                return Ok((model, None));
            }
            Some(Asked::Within(most_error)) => *most_error,
        };
        let sample = Sample::new(&model, self.sample.as_deref())?;
        let (chosen, words) = choose(&model, most_error, &sample, purpose, progress)?;
        Ok((chosen, Some(words)))
    }
}

/// The requests to optimise for, and the time for the choice.
pub struct Purpose {
    /// Sizes of requests, sequences and steps.
    pub sizes: Vec<(usize, usize)>,
    /// Maximum number of cores.
    pub cores: usize,
    pub budget: Duration,
}

/// Chooses precisions. Returns the model in these, and the choice as text.
///
/// # Errors
/// Those of [`choose_precisions`].
pub fn choose(
    model: &Model,
    most_error: f64,
    sample: &Sample,
    purpose: Purpose,
    progress: impl FnMut(&PrecisionProgress) -> ControlFlow<()> + Send,
) -> Result<(Model, String), Failure> {
    let options = PrecisionOptions::new(
        sample.input.borrow(),
        most_error,
        purpose.sizes,
        purpose.cores,
        purpose.budget,
    );
    let chosen = choose_precisions(model, &options, progress)?;
    let words = words(&chosen, most_error, &sample.what)?;
    Ok((chosen.model, words))
}

fn words(chosen: &Chosen, most_error: f64, sample: &str) -> Result<String, Failure> {
    let mut text = String::new();
    writeln!(
        text,
        "precisions for an output error of at most {most_error} over {sample}; {} mixes measured:",
        chosen.tried
    )?;
    let mut line = |name, mix: &Mix| {
        writeln!(
            text,
            "  {name:<10} error {:>9.2e}   time {:>5.2} of f32's   --precision {}",
            mix.error,
            mix.time,
            written(&mix.precisions)
        )
    };
    line("chosen", &chosen.mix)?;
    for other in &chosen.others {
        line("not", other)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions_are_one_or_one_for_each_layer_or_auto() {
        use Precision::{Bf16, F32, Int8};
        for (text, expected) in [
            ("int8", Asked::For(Precisions::Same(Int8))),
            (
                "f32,bf16,int8",
                Asked::For(Precisions::Each(vec![F32, Bf16, Int8])),
            ),
            ("auto:0.01", Asked::Within(0.01)),
            ("auto:0", Asked::Within(0.0)),
            ("auto:1e-3", Asked::Within(0.001)),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            let fixed = text.parse::<Precisions>().ok();
            assert_eq!(
                fixed.map(Asked::For).unwrap_or(Asked::Within(0.0)),
                match expected {
                    Asked::Within(_) => Asked::Within(0.0),
                    fixed => fixed,
                }
            );
        }
        for text in [
            "",
            "int4",
            "int8,",
            "INT8",
            "auto",
            "auto:",
            "auto:-1",
            "auto:nan",
            "auto:inf",
            "auto0.1",
            "auto:0.1,int8",
            "int8,auto:0.1",
        ] {
            let line = text.parse::<Asked>().unwrap_err();
            assert!(line.contains("auto:"), "{text}: {line}");
            assert!(text.parse::<Precisions>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        use Precision::{Bf16, F32, Int8};
        assert_eq!(written(&[Int8, Int8]), "int8");
        assert_eq!(written(&[F32]), "f32");
        let mix = [Int8, F32, Bf16];
        assert_eq!(written(&mix).parse(), Ok(Precisions::Each(mix.to_vec())));
    }
}
