//! Messages from the threads of a target to the generator.
//!
//! Not a channel of the standard library: its receiver yields while a sender is about to write. The
//! generator runs at a [higher priority](super::priority) than the workers, so yielding does not
//! let them run; a worker on the same core that was interrupted while sending would be blocked.
//! This lock sleeps instead.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The receiving end.
pub struct Inbox<M>(Arc<Shared<M>>);

/// A sending end; clones send to the same inbox.
pub struct Outbox<M>(Arc<Shared<M>>);

struct Shared<M> {
    messages: Mutex<Messages<M>>,
    arrived: Condvar,
}

struct Messages<M> {
    waiting: VecDeque<M>,
    /// Whether the receiver sleeps until a message comes.
    is_awaited: bool,
}

/// Makes both ends.
pub fn inbox<M>() -> (Outbox<M>, Inbox<M>) {
    let shared = Arc::new(Shared {
        messages: Mutex::new(Messages {
            waiting: VecDeque::new(),
            is_awaited: false,
        }),
        arrived: Condvar::new(),
    });
    (Outbox(Arc::clone(&shared)), Inbox(shared))
}

impl<M> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, Messages<M>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Outbox<M> {
        Outbox(Arc::clone(&self.0))
    }
}

impl<M> Outbox<M> {
    /// Adds a message.
    pub fn send(&self, message: M) {
        let mut messages = self.0.lock();
        messages.waiting.push_back(message);
        let is_awaited = messages.is_awaited;
        drop(messages);
        if is_awaited {
            self.0.arrived.notify_one();
        }
    }
}

impl<M> Inbox<M> {
    /// The next message, if there is one.
    pub fn take(&self) -> Option<M> {
        self.0.lock().waiting.pop_front()
    }

    /// The next message, waiting at most `time` for it.
    pub fn take_within(&self, time: Duration) -> Option<M> {
        let until = Instant::now() + time;
        let mut messages = self.0.lock();
        while messages.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            messages.is_awaited = true;
            let woken = self.0.arrived.wait_timeout(messages, left);
            messages = woken.unwrap_or_else(PoisonError::into_inner).0;
            messages.is_awaited = false;
        }
        messages.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_are_waited_for() {
        let (send, messages) = inbox();
        assert_eq!(messages.take(), None);
        let begin = Instant::now();
        assert_eq!(messages.take_within(Duration::from_millis(3)), None);
        assert!(begin.elapsed() >= Duration::from_millis(3));
        send.send(1);
        send.clone().send(2);
        assert_eq!(messages.take_within(Duration::ZERO), Some(1));
        assert_eq!(messages.take(), Some(2));
        let sender = std::thread::spawn(move || {
            for message in 3..100 {
                std::thread::sleep(Duration::from_micros(100));
                send.send(message);
            }
        });
        for message in 3..100 {
            assert_eq!(
                messages.take_within(Duration::from_secs(3600)),
                Some(message)
            );
        }
        sender.join().unwrap();
    }
}
