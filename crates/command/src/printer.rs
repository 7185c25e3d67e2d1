//! Standard output that tolerates a closed pipe.

use std::io::{self, ErrorKind, Stdout, Write};

/// Writes to standard output. If the reader closes it (`| head -1`), a command fails with
/// [`FailureKind::ClosedPipe`](crate::FailureKind::ClosedPipe), unless it has files left to write.
pub struct Printer {
    out: Stdout,
    ignores_closed_pipe: bool,
}

impl Printer {
    /// With `ignores_closed_pipe`, output to a closed pipe is discarded instead of being an error.
    pub fn new(ignores_closed_pipe: bool) -> Printer {
        Printer {
            out: io::stdout(),
            ignores_closed_pipe,
        }
    }

    fn checked<T>(&self, result: io::Result<T>, discarded: T) -> io::Result<T> {
        match result {
            Err(error) if self.ignores_closed_pipe && error.kind() == ErrorKind::BrokenPipe => {
                Ok(discarded)
            }
            result => result,
        }
    }
}

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.checked(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.checked(flushed, ())
    }
}
