//! Standard output, whose reader may leave before all is said.

use std::io::{self, ErrorKind, Stdout, Write};

/// Prints. Who reads it may have seen enough (`| head -1`): that ends a command, unless it has files to write, too.
pub struct Printer {
    out: Stdout,
    goes_on: bool,
}

impl Printer {
    /// When nobody reads any more, a command that `goes_on` prints to nobody, and others get the error.
    pub fn new(goes_on: bool) -> Printer {
        Printer {
            out: io::stdout(),
            goes_on,
        }
    }

    fn heard<T>(&self, result: io::Result<T>, unheard: T) -> io::Result<T> {
        match result {
            Err(error) if self.goes_on && error.kind() == ErrorKind::BrokenPipe => Ok(unheard),
            result => result,
        }
    }
}

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.heard(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.heard(flushed, ())
    }
}
