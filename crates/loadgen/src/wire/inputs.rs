//! Requests of any model, made of the inputs that its metadata lists.
//!
//! An axis of a size of its own keeps it. Of the open axes, the first of several of an input has
//! size 1, the others the length that is drawn for the request; options give other sizes.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

use super::element::Element;
use super::request::{Tensor, TensorPort, random_values};
use crate::workload::{RequestShape, RequestSpec};

/// The word for the length of a request.
const LENGTH: &str = "length";

/// The largest size of an axis.
const MAX_SIZE: usize = 1 << 24;

/// Most elements of an input.
const MAX_ELEMENTS: usize = 1 << 28;

/// The size of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Fixed(usize),
    /// Drawn for each request; both are included.
    Between(usize, usize),
    /// The length of the request.
    Length,
}

/// `INPUT.AXIS=SIZE`: the size of an open axis, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisOption {
    input: String,
    axis: usize,
    size: Size,
}

/// The values of an input.
#[derive(Clone, Debug, PartialEq)]
enum Values {
    /// From -0.5 to 0.5.
    Random,
    Number(f64),
    /// Drawn for each element; both are included.
    Between(f64, f64),
    /// The length of the request.
    Length,
    Text(String),
}

/// `INPUT=VALUE`: the values of an input.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueOption {
    input: String,
    values: Values,
}

impl FromStr for AxisOption {
    type Err = String;

    fn from_str(text: &str) -> Result<AxisOption, String> {
        let parse = || {
            let (place, size) = text.rsplit_once('=')?;
            let (input, axis) = place.rsplit_once('.')?;
            Some(AxisOption {
                input: input.to_owned(),
                axis: axis.parse().ok()?,
                size: size.parse().ok()?,
            })
        };
        parse().ok_or_else(|| {
            format!(
                "expected INPUT.AXIS=SIZE, as in x.0=8 (axes from 0); a size is a number up to \
                 {MAX_SIZE}, LOW:HIGH, or {LENGTH}"
            )
        })
    }
}

impl FromStr for Size {
    type Err = ();

    fn from_str(text: &str) -> Result<Size, ()> {
        let size = |text: &str| text.parse().ok().filter(|&size| size <= MAX_SIZE).ok_or(());
        if text == LENGTH {
            return Ok(Size::Length);
        }
        match text.split_once(':') {
            None => Ok(Size::Fixed(size(text)?)),
            Some((low, high)) => match (size(low)?, size(high)?) {
                (low, high) if low <= high => Ok(Size::Between(low, high)),
                _ => Err(()),
            },
        }
    }
}

impl FromStr for ValueOption {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueOption, String> {
        let (input, value) = text
            .split_once('=')
            .ok_or("expected INPUT=VALUE; a value is a number, LOW:HIGH, length, or a text")?;
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        let between = || {
            let (low, high) = value.split_once(':')?;
            let (low, high) = (number(low)?, number(high)?);
            (low <= high).then_some(Values::Between(low, high))
        };
        let values = match number(value) {
            _ if value == LENGTH => Values::Length,
            Some(number) => Values::Number(number),
            None => between().unwrap_or_else(|| Values::Text(value.to_owned())),
        };
        let input = input.to_owned();
        Ok(ValueOption { input, values })
    }
}

/// How the inputs of a model are filled.
#[derive(Clone, Debug, PartialEq)]
pub struct InputOptions {
    /// Sizes of open axes.
    pub axes: Vec<AxisOption>,
    /// Values of inputs.
    pub values: Vec<ValueOption>,
    /// The longest length of a request.
    pub longest: usize,
}

/// An input with its sizes and values.
#[derive(Clone, Debug)]
struct Input {
    name: String,
    element: Element,
    axes: Vec<Size>,
    values: Values,
}

/// Makes the tensors of requests.
#[derive(Clone, Debug)]
pub struct Filling {
    inputs: Vec<Input>,
    /// Requests take parts of them, as values do not change the time.
    values: Vec<f32>,
}

impl Filling {
    /// For a model with these inputs.
    ///
    /// # Errors
    /// An option names no input or no open axis; a value does not fit its input; an input is too
    /// large, or of strings without a value.
    pub fn new(ports: &[TensorPort], options: &InputOptions) -> Result<Filling, String> {
        let mut inputs = ports
            .iter()
            .map(Input::new)
            .collect::<Result<Vec<_>, _>>()?;
        for AxisOption { input, axis, size } in &options.axes {
            let number = index(ports, input, "--axis")?;
            match ports[number].shape.get(*axis) {
                Some(..0) => inputs[number].axes[*axis] = *size,
                Some(own) if Size::of(*own) == *size => {}
                _ => {
                    return Err(format!(
                        "--axis {input}.{axis}: {} has no open axis {axis}; open axes are -1, and \
                         counted from 0",
                        Named(&ports[number])
                    ));
                }
            }
        }
        for ValueOption { input, values } in &options.values {
            inputs[index(ports, input, "--value")?].values = values.clone();
        }
        inputs
            .iter()
            .try_for_each(|input| input.check(options.longest))?;
        let values = random_values();
        Ok(Filling { inputs, values })
    }

    /// The inputs of a request.
    pub fn tensors(&self, request: &RequestSpec) -> Vec<Tensor> {
        let length = match request.shape {
            RequestShape::Chain { steps } => steps,
            _ => 1,
        };
        let mut random = Rng::with_seed(request.seed);
        let tensor = |input: &Input| input.tensor(length, &self.values, &mut random);
        self.inputs.iter().map(tensor).collect()
    }
}

/// The inputs, as in "x FP32 [1, length], rate INT64 [] = 16000".
impl fmt::Display for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<_> = self.inputs.iter().map(Input::to_string).collect();
        f.write_str(&inputs.join(", "))
    }
}

fn index(ports: &[TensorPort], input: &str, option: &str) -> Result<usize, String> {
    let found = ports.iter().position(|port| port.name == input);
    found.ok_or_else(|| {
        let all: Vec<_> = ports.iter().map(|port| Named(port).to_string()).collect();
        format!(
            "{option}: the model has no input {input}; it has {}",
            all.join(", ")
        )
    })
}

/// An input as the metadata has it.
struct Named<'a>(&'a TensorPort);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorPort {
            name,
            datatype,
            shape,
        } = self.0;
        write!(f, "{name} {datatype} {shape:?}")
    }
}

impl Input {
    fn new(port: &TensorPort) -> Result<Input, String> {
        let element = port
            .datatype
            .parse()
            .map_err(|()| format!("input {}: the datatype is unknown", Named(port)))?;
        let is_open = |axis: &&i64| **axis < 0;
        let many = port.shape.iter().filter(is_open).count() > 1;
        let first = port.shape.iter().position(|axis| *axis < 0);
        let axes = port.shape.iter().enumerate().map(|(index, &axis)| {
            if axis >= 0 {
                Size::of(axis)
            } else if many && first == Some(index) {
                Size::Fixed(1)
            } else {
                Size::Length
            }
        });
        Ok(Input {
            name: port.name.clone(),
            element,
            axes: axes.collect(),
            // An index that most tables have, a length that most sequences have, a condition.
            values: if element.is_float() {
                Values::Random
            } else {
                Values::Number(1.0)
            },
        })
    }

    /// Checks the size, and whether values can be elements.
    fn check(&self, longest: usize) -> Result<(), String> {
        let largest = self.axes.iter().map(|size| size.largest(longest));
        let elements = largest.fold(1, usize::saturating_mul);
        if elements > MAX_ELEMENTS {
            return Err(format!(
                "input {self}: {elements} elements; a request may have {MAX_ELEMENTS} of an input: \
                 give smaller sizes by --axis"
            ));
        }
        let bounds: &[f64] = match &self.values {
            Values::Random => &[],
            Values::Number(number) => &[*number],
            Values::Between(low, high) => &[*low, *high],
            Values::Length => &[longest as f64],
            Values::Text(_) if self.element == Element::Text => return Ok(()),
            Values::Text(_) => &[f64::NAN],
        };
        if self.element == Element::Text {
            return Err(format!(
                "input {} has texts: give one by --value {}=TEXT",
                self.name, self.name
            ));
        }
        match bounds.iter().find(|&&bound| !self.element.holds(bound)) {
            Some(_) => Err(format!(
                "--value: {self} is no value of this datatype; give a number of it, LOW:HIGH, or \
                 {LENGTH}"
            )),
            None => Ok(()),
        }
    }

    fn tensor(&self, length: usize, pool: &[f32], random: &mut Rng) -> Tensor {
        let sizes = self.axes.iter().map(|size| size.draw(length, random));
        let sizes: Vec<usize> = sizes.collect();
        let count = sizes.iter().product();
        let start = random.usize(..pool.len());
        let mut raw = Vec::with_capacity(count * self.element.bytes());
        match &self.values {
            Values::Random => {
                let values = pool[start..].iter().chain(pool).cycle().take(count);
                values.for_each(|value| self.element.write(f64::from(*value), &mut raw));
            }
            Values::Number(number) => {
                (0..count).for_each(|_| self.element.write(*number, &mut raw))
            }
            Values::Length => (0..count).for_each(|_| self.element.write(length as f64, &mut raw)),
            Values::Between(low, high) => (0..count).for_each(|_| {
                let value = if self.element.is_float() {
                    low + (high - low) * random.f64()
                } else {
                    low + random.u64(..=(high - low) as u64) as f64
                };
                self.element.write(value, &mut raw);
            }),
            Values::Text(text) => (0..count).for_each(|_| {
                raw.extend((text.len() as u32).to_le_bytes());
                raw.extend(text.as_bytes());
            }),
        }
        Tensor {
            name: self.name.clone(),
            datatype: self.element.name(),
            shape: sizes.iter().map(|size| *size as i64).collect(),
            raw: raw.into(),
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self.axes.iter().map(Size::to_string).collect();
        write!(
            f,
            "{} {} [{}]",
            self.name,
            self.element.name(),
            axes.join(", ")
        )?;
        match &self.values {
            Values::Random => Ok(()),
            Values::Number(number) => write!(f, " = {number}"),
            Values::Between(low, high) => write!(f, " = {low}:{high}"),
            Values::Length => write!(f, " = {LENGTH}"),
            Values::Text(text) => write!(f, " = {text}"),
        }
    }
}

impl Size {
    /// The size of an axis that is not open.
    fn of(axis: i64) -> Size {
        Size::Fixed(usize::try_from(axis).unwrap_or(usize::MAX))
    }

    fn largest(self, longest: usize) -> usize {
        match self {
            Size::Fixed(size) | Size::Between(_, size) => size,
            Size::Length => longest,
        }
    }

    fn draw(self, length: usize, random: &mut Rng) -> usize {
        match self {
            Size::Fixed(size) => size,
            Size::Between(low, high) => random.usize(low..=high),
            Size::Length => length,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Fixed(size) => write!(f, "{size}"),
            Size::Between(low, high) => write!(f, "{low}:{high}"),
            Size::Length => f.write_str(LENGTH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, datatype: &str, shape: &[i64]) -> TensorPort {
        TensorPort {
            name: name.into(),
            datatype: datatype.into(),
            shape: shape.to_vec(),
        }
    }

    fn filling(ports: &[TensorPort], axes: &[&str], values: &[&str]) -> Result<Filling, String> {
        let options = InputOptions {
            axes: axes.iter().map(|text| text.parse().unwrap()).collect(),
            values: values.iter().map(|text| text.parse().unwrap()).collect(),
            longest: 40,
        };
        Filling::new(ports, &options)
    }

    fn request(steps: usize, seed: u64) -> RequestSpec {
        let shape = RequestShape::Chain { steps };
        RequestSpec { shape, seed }
    }

    /// The inputs of a voice activity detector.
    fn voice() -> [TensorPort; 3] {
        [
            port("input", "FP32", &[-1, -1]),
            port("state", "FP32", &[2, -1, 128]),
            port("sr", "INT64", &[]),
        ]
    }

    #[test]
    fn open_axes_and_values_are_filled() {
        let filling = filling(&voice(), &["state.1=1"], &["sr=16000"]).unwrap();
        assert_eq!(
            filling.to_string(),
            "input FP32 [1, length], state FP32 [2, 1, 128], sr INT64 [] = 16000"
        );
        let tensors = filling.tensors(&request(31, 7));
        let shapes: Vec<_> = tensors.iter().map(|tensor| tensor.shape.clone()).collect();
        assert_eq!(shapes, [vec![1, 31], vec![2, 1, 128], vec![]]);
        assert_eq!(tensors[2].raw[..], 16_000_i64.to_le_bytes());
        let floats = tensors[1].raw.chunks_exact(4);
        let floats: Vec<_> = floats
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(floats.len(), 256);
        assert!(floats.iter().all(|x| (-0.5..0.5).contains(x)));
        assert!(floats.iter().any(|x| *x != floats[0]));
        // Equal for all targets, and another one for another seed.
        assert_eq!(filling.tensors(&request(31, 7)), tensors);
        assert_ne!(filling.tensors(&request(31, 8)), tensors);
    }

    #[test]
    fn sizes_and_values_are_drawn_within_their_bounds() {
        let ports = [
            port("tokens", "INT32", &[-1, -1]),
            port("lengths", "INT64", &[-1]),
        ];
        let axes = ["tokens.0=2:4", "lengths.0=1"];
        let filling = filling(&ports, &axes, &["tokens=-1:1", "lengths=length"]).unwrap();
        let mut rows = Vec::new();
        let mut tokens = Vec::new();
        for seed in 0..60 {
            let tensors = filling.tensors(&request(9, seed));
            rows.push(tensors[0].shape[0]);
            assert_eq!(tensors[0].shape[1], 9);
            let all = tensors[0].raw.chunks_exact(4);
            tokens.extend(all.map(|b| i32::from_le_bytes(b.try_into().unwrap())));
            assert_eq!(tensors[1].raw[..], 9_i64.to_le_bytes());
        }
        rows.sort_unstable();
        rows.dedup();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!((rows, tokens), (vec![2, 3, 4], vec![-1, 0, 1]));
    }

    #[test]
    fn texts_have_their_lengths_before_them() {
        let ports = [port("words", "BYTES", &[-1, 2])];
        let filling = filling(&ports, &["words.0=1"], &["words=ja"]).unwrap();
        let tensors = filling.tensors(&request(1, 1));
        assert_eq!(tensors[0].raw[..], *b"\x02\0\0\0ja\x02\0\0\0ja");
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        let says = |ports: &[TensorPort], axes: &[&str], values: &[&str], words: &str| {
            let error = filling(ports, axes, values).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        let voice = voice();
        says(
            &voice,
            &["x.0=1"],
            &[],
            "no input x; it has input FP32 [-1, -1], state",
        );
        says(&voice, &["state.0=1"], &[], "has no open axis 0");
        says(&voice, &["sr.0=1"], &[], "has no open axis 0");
        assert!(filling(&voice, &["state.0=2"], &[]).is_ok());
        says(&voice, &["input.0=16777216"], &[], "elements");
        says(&voice, &[], &["rate=1"], "no input rate");
        says(&voice, &[], &["sr=0.5"], "sr INT64 [] = 0.5 is no value");
        says(&voice, &[], &["sr=many"], "sr INT64 [] = many is no value");
        let words = [port("words", "BYTES", &[-1])];
        says(&words, &[], &[], "--value words=TEXT");
        says(&[port("x", "COMPLEX64", &[1])], &[], &[], "x COMPLEX64 [1]");
        for text in ["x=1", "x.a=1", "x.1=", "x.1=5:2", "x.1=-2", "x.1=16777217"] {
            assert!(text.parse::<AxisOption>().is_err(), "{text}");
        }
        assert!("x".parse::<ValueOption>().is_err());
        // Names of other tools have colons and dots.
        let option: AxisOption = "serving_default.x:0.1=3:5".parse().unwrap();
        assert_eq!(
            (option.input.as_str(), option.axis),
            ("serving_default.x:0", 1)
        );
    }
}
