//! The contents of a file of tensors, as text.

use std::fmt::Write as _;
use std::path::Path;

use super::layers;
use crate::model::{FileOptions, open};
use gatestream::model::{Model, SafetensorsOptions, TensorFile, Tensors};
use gatestream_command::Failure;

/// The layers of the stack that the options select; without a prefix, all stacks of a file that
/// holds several or other tensors, and these.
pub fn text(path: &Path, options: &FileOptions) -> Result<String, Failure> {
    let refused = match open(path, options, None) {
        Ok(model) => return layers(&model),
        Err(refused) => refused,
    };
    if options.prefix.is_some() {
        return Err(refused);
    }
    let file = TensorFile::read(path).map_err(|why| Failure::from(why).of(path))?;
    let tensors = file.tensors().map_err(|why| Failure::from(why).of(path))?;
    let (stacks, others) = match tensors.stacks() {
        Ok(found) => found,
        // A parametrisation that is not known: all tensors are listed, and why it is refused.
        Err(_) => (Vec::new(), tensors.names().map(str::to_owned).collect()),
    };
    let mut text = String::new();
    writeln!(text, "{} tensors", tensors.names().count())?;
    for prefix in &stacks {
        stack(&mut text, &tensors, prefix)?;
    }
    writeln!(text, "\nother tensors: {}", others.len())?;
    for name in &others {
        let kind = tensors.dtype(name).unwrap_or_default();
        let shape = tensors.shape(name).unwrap_or_default();
        writeln!(text, "{name:?} {kind} {shape:?}")?;
    }
    for (name, of) in tensors.unread() {
        writeln!(text, "{name:?} of the type {of}, which is not read")?;
    }
    writeln!(
        text,
        "\nwithout options, other commands refuse it: {refused}"
    )?;
    Ok(text)
}

/// One stack.
fn stack(text: &mut String, tensors: &Tensors<'_>, prefix: &str) -> Result<(), Failure> {
    let option = match prefix.strip_suffix('.').unwrap_or(prefix) {
        "" => "without a prefix".to_owned(),
        prefix => format!("--prefix {prefix:?}"),
    };
    writeln!(text, "\n{option}")?;
    let options = SafetensorsOptions::new().prefix(prefix);
    match Model::from_tensors(tensors, &options) {
        Ok(model) => text.push_str(&layers(&model)?),
        Err(why) => writeln!(text, "no stack of layers: {why}")?,
    }
    Ok(())
}
