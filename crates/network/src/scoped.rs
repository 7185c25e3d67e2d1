//! Context for tract's parser callbacks, through thread-locals: they take no argument for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

/// A value of this thread, while [`with`] runs.
pub(crate) type Scoped<T> = LocalKey<RefCell<Option<Arc<T>>>>;

/// Sets a value, runs `run`, and sets the value before again, also if `run` panics.
pub(crate) fn with<T: 'static, R>(
    scoped: &'static Scoped<T>,
    value: &Arc<T>,
    run: impl FnOnce() -> R,
) -> R {
    struct Reset<T: 'static>(&'static Scoped<T>, Option<Arc<T>>);
    impl<T> Drop for Reset<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }
    let _reset = Reset(scoped, scoped.replace(Some(Arc::clone(value))));
    run()
}

/// The value that is set.
pub(crate) fn current<T>(scoped: &'static Scoped<T>) -> Option<Arc<T>> {
    scoped.with_borrow(Clone::clone)
}
