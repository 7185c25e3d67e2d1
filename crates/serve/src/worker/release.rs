//! Frees the memory of large requests on a thread of its own: freeing some hundred megabytes takes
//! tens of milliseconds, in which a worker would run no batch.
//!
//! The thread that uses a request last frees it, which may be a client's, a worker's or the reply
//! thread. None of them may stand still. Allocators return a large buffer to the system under a
//! lock of the whole process, for which other threads wait when they start a thread or allocate
//! much. So the largest buffer is returned [in pieces](InPieces).

use gatestream::execute::team::without_pin;

/// Freeing less takes less time than starting a thread and a batch.
const LARGE: usize = 4 << 20;

/// Drops `memory` of `bytes` bytes: here if it is small, else on a new thread. It owns no objects
/// of users.
pub(crate) fn release<T: Send + 'static>(memory: T, bytes: usize) {
    if bytes < LARGE {
        return;
    }
    // The closure of a thread that cannot start is dropped, and the memory with it.
    let _ = without_pin(|| {
        std::thread::Builder::new()
            .name("gatestream-release".into())
            .spawn(move || drop(memory))
    });
}

/// A buffer whose memory is returned in pieces of [`LARGE`] bytes.
pub(super) struct InPieces(pub Vec<f32>);

impl Drop for InPieces {
    fn drop(&mut self) {
        const PIECE: usize = LARGE / size_of::<f32>();
        while self.0.len() > PIECE {
            self.0.truncate(self.0.len() - PIECE);
            self.0.shrink_to_fit();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{ThreadId, current};

    use super::*;

    /// Tells the thread that drops it.
    struct Told(Sender<ThreadId>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(current().id());
        }
    }

    #[test]
    fn large_memory_is_dropped_by_another_thread() {
        let (dropped, threads) = channel();
        for (bytes, is_here) in [(0, true), (LARGE - 1, true), (LARGE, false)] {
            release(Told(dropped.clone()), bytes);
            assert_eq!(threads.recv().unwrap() == current().id(), is_here);
        }
    }
}
