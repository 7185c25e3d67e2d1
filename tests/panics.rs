//! Panics whose messages a caller reports itself are not printed, and no other panic is hidden.
//! One test: the hook is the process's.

use std::panic::{catch_unwind, set_hook};
use std::sync::atomic::{AtomicUsize, Ordering};

use gatestream::execute::team::{catch_panic, catch_panic_silently, silence_panics_of_this_thread};

static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);

fn told() -> (usize, usize) {
    (FIRST.load(Ordering::SeqCst), SECOND.load(Ordering::SeqCst))
}

fn fall() {
    panic!("on purpose");
}

#[test]
fn only_silent_panics_are_kept_from_the_hook_of_the_host() {
    set_hook(Box::new(|_| {
        FIRST.fetch_add(1, Ordering::SeqCst);
    }));
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        assert!(catch_panic_silently(fall).is_err());
        assert_eq!(told(), (1, 0), "no panic is silent");
        return;
    }
    let caught = catch_panic_silently(fall).unwrap_err();
    assert_eq!(caught.message(), "on purpose");
    assert_eq!(told(), (0, 0), "the thread is silent");
    assert!(catch_panic(fall).is_err());
    assert_eq!(told(), (1, 0), "no longer");
    assert!(catch_panic_silently(|| assert!(catch_panic_silently(fall).is_err())).is_ok());
    assert!(catch_unwind(fall).is_err());
    assert_eq!(told(), (2, 0));

    // Another thread's panic during a silent job.
    let other = || std::thread::scope(|scope| scope.spawn(fall).join().is_err());
    assert!(catch_panic_silently(other).is_ok_and(|is_other| is_other));
    assert_eq!(told(), (3, 0));
    let quiet = || {
        silence_panics_of_this_thread();
        fall();
    };
    assert!(std::thread::spawn(quiet).join().is_err());
    assert_eq!(told(), (3, 0));

    // The host sets another hook: it stays, and hears one silent panic at most.
    set_hook(Box::new(|_| {
        SECOND.fetch_add(1, Ordering::SeqCst);
    }));
    assert!(catch_panic_silently(fall).is_err());
    assert_eq!(told(), (3, 1));
    for _ in 0..10 {
        assert!(catch_panic_silently(fall).is_err());
    }
    assert_eq!(told(), (3, 1));
    assert!(catch_unwind(fall).is_err());
    assert_eq!(told(), (3, 2));

    // Many threads at once: each hides its own panics alone.
    std::thread::scope(|scope| {
        for index in 0..8 {
            scope.spawn(move || {
                for _ in 0..50 {
                    match index % 2 {
                        0 => assert!(catch_panic_silently(fall).is_err()),
                        _ => assert!(catch_panic(fall).is_err()),
                    }
                }
            });
        }
    });
    assert_eq!(told(), (3, 2 + 4 * 50));
}
