//! The lines of a plan file, and the words of a line.

use std::iter::{Enumerate, Peekable};
use std::ops::Range;
use std::str::{FromStr, Lines};

use super::PlanFileError;
use crate::plan::stamp::Sum;

/// Most sequences and steps, so that sums and products of two of them cannot overflow 64 bits.
pub(super) const MAX_SIZE: u64 = u32::MAX as u64;

/// Characters of a line that an error shows: all of most lines.
const EXCERPT: usize = 120;

/// The lines that mean something: neither empty nor a comment, without what they are indented by.
pub(super) struct Significant<'a> {
    lines: Peekable<Enumerate<Lines<'a>>>,
    /// Number of the line taken last, counted from 1.
    last: usize,
    /// Of all lines taken.
    pub sum: Sum,
}

impl<'a> Significant<'a> {
    pub fn of(text: &'a str) -> Significant<'a> {
        Significant {
            lines: text.lines().enumerate().peekable(),
            last: 0,
            sum: Sum::default(),
        }
    }

    pub fn peek(&mut self) -> Option<&'a str> {
        let skipped = |line: &str| line.is_empty() || line.starts_with('#');
        while self
            .lines
            .next_if(|(_, line)| skipped(line.trim_start()))
            .is_some()
        {}
        self.lines.peek().map(|(_, line)| line.trim_start())
    }

    pub fn next(&mut self) -> Option<(usize, &'a str)> {
        let line = self.peek()?;
        self.last = self.peeked_number();
        self.lines.next();
        self.sum.line(line);
        Some((self.last, line))
    }

    /// The number of the next line; behind the last, that of the last.
    pub fn peeked_number(&mut self) -> usize {
        self.peek();
        self.lines.peek().map_or(self.last, |(index, _)| index + 1)
    }

    pub fn starts_with(&mut self, keyword: &str) -> bool {
        let first = self.peek().and_then(|line| line.split_whitespace().next());
        first == Some(keyword)
    }

    /// The next line is not what is `expected`, or is not there.
    pub fn unexpected(&mut self, expected: &'static str) -> PlanFileError {
        let line = self.peeked_number();
        match self.peek() {
            Some(found) => corrupt(line, expected, found),
            None => PlanFileError::Cut { line, expected },
        }
    }

    /// Takes a line that holds what `read` takes, and nothing else.
    pub fn read<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&mut Tokens<'a>) -> Option<T>,
    ) -> Result<T, PlanFileError> {
        let Some(line) = self.peek() else {
            return Err(self.unexpected(expected));
        };
        let mut tokens = Tokens { rest: line };
        match read(&mut tokens) {
            Some(value) if tokens.is_done() => {
                self.next();
                Ok(value)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// As [`Significant::read`], but gives the line, with its number.
    pub fn line(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&mut Tokens<'a>) -> Option<&'a str>,
    ) -> Result<(usize, &'a str), PlanFileError> {
        let (number, line) = (self.peeked_number(), self.peek().unwrap_or_default());
        self.read(expected, read)?;
        Ok((number, line.trim_end()))
    }
}

/// What is left of a line. `None` is what does not belong there.
pub(super) struct Tokens<'a> {
    pub rest: &'a str,
}

impl<'a> Tokens<'a> {
    pub fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    pub fn keyword(&mut self, keyword: &str) -> Option<&mut Tokens<'a>> {
        (self.word()? == keyword).then_some(self)
    }

    pub fn named<N: FromStr>(&mut self, keyword: &str) -> Option<N> {
        number(self.keyword(keyword)?.word()?)
    }

    pub fn size(&mut self, keyword: &str) -> Option<usize> {
        self.keyword(keyword)?.number()
    }

    pub fn number(&mut self) -> Option<usize> {
        let size: u64 = number(self.word()?)?;
        usize::try_from(size).ok().filter(|_| size <= MAX_SIZE)
    }

    /// Ranges up to a keyword or the end; at least one.
    pub fn ranges(&mut self) -> Option<Vec<Range<usize>>> {
        let mut ranges = Vec::new();
        while self
            .rest
            .trim_start()
            .starts_with(|c: char| c.is_ascii_digit())
        {
            let (start, end) = self.word()?.split_once("..")?;
            ranges.push(number(start)?..number(end)?);
        }
        (!ranges.is_empty()).then_some(ranges)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> Option<&'a str> {
        Some(std::mem::take(&mut self.rest))
    }

    /// Everything that is left, without spaces around it.
    pub fn text(&mut self) -> Option<&'a str> {
        self.rest().map(str::trim)
    }

    pub fn is_done(&self) -> bool {
        self.rest.trim_start().is_empty()
    }
}

/// Decimal digits and nothing else: no sign, as Rust's own parsing would allow.
pub(super) fn number<N: FromStr>(text: &str) -> Option<N> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

pub(super) fn corrupt(line: usize, expected: &'static str, found: &str) -> PlanFileError {
    let found = excerpt(found);
    PlanFileError::Corrupt {
        line,
        expected,
        found,
    }
}

/// The beginning of a line, fit to be shown.
pub(super) fn excerpt(line: &str) -> String {
    let line = line.trim();
    let shown = line.chars().take(EXCERPT);
    let start: String = shown.flat_map(char::escape_debug).collect();
    match line.chars().nth(EXCERPT) {
        None => start,
        Some(_) => start + "…",
    }
}
