//! The stack machine of Python's pickles, without Python: calls are recorded, never made.
//!
//! ```text
//! pickle  = operation … STOP
//! values  are numbered; a container holds numbers: objects may be shared and cyclic
//! GLOBAL m n · arguments · REDUCE        the value Call { m.n, arguments }
//! BUILD, SETITEMS, APPENDS on a call     kept with it
//! ```
//!
//! Texts and bytes are slices of the file. Memory is bounded: an operation adds one value at most,
//! and there are [`MAX_VALUES`].

use std::collections::HashMap;

/// Many more than a checkpoint has: a tensor takes about twenty.
const MAX_VALUES: usize = 1 << 22;

/// Bytes of the longest name. A longer text counts as none: it is not compared with others.
pub(super) const MAX_NAME: usize = 1 << 10;

const TOO_MANY: &str = "its pickle has more than 4194304 values";

/// The number of a value.
pub(super) type Id = u32;

/// A value of a pickle.
#[derive(Debug)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Another number or text that no tensor depends on.
    Scalar,
    Text(&'a str),
    /// Bytes, or a text of Python 2 that is not UTF-8.
    Bytes(&'a [u8]),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function.
    Global {
        module: &'a str,
        name: &'a str,
    },
    Call(Box<Call>),
    /// An object that lies outside of the pickle.
    Persistent(Id),
}

/// A call that Python would make, and its changes of the result.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub callable: Id,
    pub arguments: Id,
    pub state: Option<Id>,
    pub items: Vec<(Id, Id)>,
    pub list: Vec<Id>,
}

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    pub root: Id,
    /// The bytes that the pickle has taken.
    pub length: usize,
}

impl<'a> Pickle<'a> {
    /// Reads the pickle at the start of `bytes`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: &'a [u8]) -> Result<Pickle<'a>, String> {
        let mut machine = Machine {
            all: bytes,
            rest: bytes,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = machine.run()?;
        Ok(Pickle {
            length: bytes.len() - machine.rest.len(),
            values: machine.values,
            root,
        })
    }

    pub fn get(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    pub fn values(&self) -> impl Iterator<Item = &Value<'a>> {
        self.values.iter()
    }

    /// The class or function that a value is.
    pub fn global(&self, id: Id) -> Option<(&'a str, &'a str)> {
        match *self.get(id) {
            Value::Global { module, name } => Some((module, name)),
            _ => None,
        }
    }

    /// The elements of a tuple or list.
    pub fn elements(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(all) | Value::List(all) => Some(all),
            _ => None,
        }
    }

    /// A name: a text, also one of Python 2.
    pub fn text(&self, id: Id) -> Option<&'a str> {
        match *self.get(id) {
            Value::Text(text) if text.len() <= MAX_NAME => Some(text),
            Value::Bytes(bytes) if bytes.len() <= MAX_NAME => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// A number of 0 or more.
    pub fn size(&self, id: Id) -> Option<usize> {
        match *self.get(id) {
            Value::Int(number) => usize::try_from(number).ok(),
            _ => None,
        }
    }

    /// A tuple or list of sizes, of 64 axes at most, as PyTorch and NumPy have.
    pub fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        let elements = self.elements(id).filter(|all| all.len() <= 64)?.iter();
        elements.map(|&id| self.size(id)).collect()
    }
}

struct Machine<'a> {
    all: &'a [u8],
    rest: &'a [u8],
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Id, String> {
        loop {
            let at = self.all.len() - self.rest.len();
            let [operation] = *self.array()?;
            if operation == b'.' {
                return self.pop();
            }
            self.step(operation)
                .map_err(|why| format!("{why} (at byte {at} of its pickle)"))?;
            let largest = self.stack.len().max(self.marks.len());
            if largest.max(self.memo.len()) > MAX_VALUES {
                return Err(TOO_MANY.into());
            }
        }
    }

    fn step(&mut self, operation: u8) -> Result<(), String> {
        match operation {
            // PROTO and FRAME.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'I' => {
                let value = match self.line()? {
                    "00" => Value::Bool(false),
                    "01" => Value::Bool(true),
                    text => text.parse().map_or(Value::Scalar, Value::Int),
                };
                self.push(value)?;
            }
            b'L' => {
                let text = self.line()?.trim_end_matches('L');
                self.push(text.parse().map_or(Value::Scalar, Value::Int))?;
            }
            b'J' => {
                let number = i32::from_le_bytes(*self.array()?);
                self.push(Value::Int(number.into()))?;
            }
            b'K' => {
                let [number] = *self.array()?;
                self.push(Value::Int(number.into()))?;
            }
            b'M' => {
                let number = u16::from_le_bytes(*self.array()?);
                self.push(Value::Int(number.into()))?;
            }
            0x8a | 0x8b => {
                let length = self.length(if operation == 0x8a { 1 } else { 4 })?;
                let bytes = self.take(length)?;
                self.push(integer(bytes))?;
            }
            b'F' => {
                self.line()?;
                self.push(Value::Scalar)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Scalar)?;
            }
            b'S' | b'V' => {
                let line = self.line()?;
                let quoted = |quote| line.strip_prefix(quote)?.strip_suffix(quote);
                let text = match operation {
                    b'S' => quoted('\'').or(quoted('"')).unwrap_or(line),
                    _ => line,
                };
                // No name of a tensor has escapes.
                self.push(if text.contains('\\') {
                    Value::Scalar
                } else {
                    Value::Text(text)
                })?;
            }
            b'B' | b'C' | 0x8e | 0x96 => {
                let length = self.length(match operation {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                })?;
                let bytes = self.take(length)?;
                self.push(Value::Bytes(bytes))?;
            }
            b'T' | b'U' | b'X' | 0x8c | 0x8d => {
                let length = self.length(match operation {
                    b'U' | 0x8c => 1,
                    b'T' | b'X' => 4,
                    _ => 8,
                })?;
                let bytes = self.take(length)?;
                // A text of Python may have halves of characters, which no name of a tensor has.
                let text = std::str::from_utf8(bytes);
                self.push(text.map_or(Value::Bytes(bytes), Value::Text))?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => drop(self.pop_to_mark()?),
            b'2' => self.stack.push(self.top()?),
            b')' => self.push(Value::Tuple(Vec::new()))?,
            0x85..=0x87 => {
                let mut elements = Vec::new();
                for _ in 0x84..operation {
                    elements.push(self.pop()?);
                }
                elements.reverse();
                self.push(Value::Tuple(elements))?;
            }
            b't' => {
                let elements = self.pop_to_mark()?;
                self.push(Value::Tuple(elements))?;
            }
            // A set is the list of its elements.
            b']' | 0x8f => self.push(Value::List(Vec::new()))?,
            b'l' | 0x91 => {
                let elements = self.pop_to_mark()?;
                self.push(Value::List(elements))?;
            }
            b'a' => {
                let element = self.pop()?;
                self.append(vec![element])?;
            }
            b'e' | 0x90 => {
                let elements = self.pop_to_mark()?;
                self.append(elements)?;
            }
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b'd' => {
                let elements = self.pop_to_mark()?;
                self.push(Value::Dict(pairs(&elements)))?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(vec![(key, value)])?;
            }
            b'u' => {
                let elements = self.pop_to_mark()?;
                self.set_items(pairs(&elements))?;
            }
            b'g' | b'h' | b'j' => {
                let index = self.index(operation, b'g', b'h')?;
                let id = self.memo.get(&index).copied();
                let id = id.ok_or_else(|| format!("it has no value {index} to repeat"))?;
                self.stack.push(id);
            }
            b'p' | b'q' | b'r' => {
                let index = self.index(operation, b'p', b'q')?;
                self.memo.insert(index, self.top()?);
            }
            0x94 => drop(self.memo.insert(self.memo.len() as u32, self.top()?)),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Global { module, name })?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text = |id: Id| match self.values[id as usize] {
                    Value::Text(text) => Some(text),
                    _ => None,
                };
                let (Some(module), Some(name)) = (text(module), text(name)) else {
                    return Err("a class has no name".into());
                };
                self.push(Value::Global { module, name })?;
            }
            // An instance: OBJ, INST.
            b'o' | b'i' => {
                let mut elements = self.pop_to_mark()?;
                let callable = match operation {
                    b'o' if elements.is_empty() => return Err("an object has no class".into()),
                    b'o' => elements.remove(0),
                    _ => {
                        let (module, name) = (self.line()?, self.line()?);
                        self.add(Value::Global { module, name })?
                    }
                };
                let arguments = self.add(Value::Tuple(elements))?;
                self.call(callable, arguments)?;
            }
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            0x92 => {
                self.pop()?;
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            b'b' => {
                let state = self.pop()?;
                let object = self.top()?;
                // The attributes of a dictionary are no items of it.
                if let Value::Call(call) = &mut self.values[object as usize] {
                    call.state = Some(state);
                }
            }
            b'P' => {
                let text = self.line()?;
                let id = self.add(Value::Text(text))?;
                self.push(Value::Persistent(id))?;
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::Persistent(id))?;
            }
            other => return Err(format!("it has the unknown operation {other:#04x}")),
        }
        Ok(())
    }

    fn add(&mut self, value: Value<'a>) -> Result<Id, String> {
        if self.values.len() == MAX_VALUES {
            return Err(TOO_MANY.into());
        }
        self.values.push(value);
        Ok(self.values.len() as Id - 1)
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        let id = self.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn call(&mut self, callable: Id, arguments: Id) -> Result<(), String> {
        self.push(Value::Call(Box::new(Call {
            callable,
            arguments,
            ..Call::default()
        })))
    }

    fn top(&self) -> Result<Id, String> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let above = self.stack.get(bottom..).and_then(<[Id]>::last);
        above.copied().ok_or_else(|| "a value is missing".into())
    }

    fn pop(&mut self) -> Result<Id, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn append(&mut self, elements: Vec<Id>) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::List(list) => list.extend(elements),
            Value::Call(call) => call.list.extend(elements),
            _ => return Err("an element is added to a value that is no list".into()),
        }
        Ok(())
    }

    fn set_items(&mut self, pairs: Vec<(Id, Id)>) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::Dict(items) => items.extend(pairs),
            Value::Call(call) => call.items.extend(pairs),
            _ => return Err("an item is added to a value that is no dictionary".into()),
        }
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = (self.rest.split_at_checked(length)).ok_or("it is cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], String> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or("it is cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    /// A length of this number of bytes.
    fn length(&mut self, bytes: usize) -> Result<usize, String> {
        let mut length = [0; 8];
        length[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(length)).map_err(|_| "it is cut short".into())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let end = self.rest.iter().position(|&byte| byte == b'\n');
        let line = self.take(end.ok_or("it is cut short")?)?;
        self.take(1)?;
        let text = std::str::from_utf8(line).map_err(|_| "a text is not UTF-8")?;
        Ok(text.strip_suffix('\r').unwrap_or(text))
    }

    /// The place in the memo, as a line, in one byte or in four.
    fn index(&mut self, operation: u8, as_line: u8, as_byte: u8) -> Result<u32, String> {
        if operation == as_line {
            return self
                .line()?
                .parse()
                .map_err(|_| "a place is no number".into());
        }
        let length = self.length(if operation == as_byte { 1 } else { 4 })?;
        u32::try_from(length).map_err(|_| "a place is no number".into())
    }
}

fn pairs(elements: &[Id]) -> Vec<(Id, Id)> {
    let pairs = elements.as_chunks::<2>().0.iter();
    pairs.map(|&[key, value]| (key, value)).collect()
}

/// Two's complement, little-endian.
fn integer<'a>(bytes: &[u8]) -> Value<'a> {
    let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut number = [if is_negative { 0xff } else { 0 }; 8];
    match number.get_mut(..bytes.len()) {
        Some(low) => {
            low.copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(number))
        }
        None => Value::Scalar,
    }
}
