//! The log of the command.

use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::listener::SPANS;

/// Formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// An object in a line
    Json,
}

/// Starts the log, and `spans`, which gets the spans of requests. Panics are records of the log.
pub fn start<L>(format: LogFormat, spans: Option<L>)
where
    L: Layer<Registry> + Send + Sync,
{
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("warn,gatestream_server=info"));
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !no_colour);
    let of_requests = Targets::new().with_target(SPANS, Level::INFO);
    let subscriber = tracing_subscriber::registry().with(spans.with_filter(of_requests));
    let started = match format {
        LogFormat::Text => subscriber.with(log.with_filter(filter)).try_init(),
        LogFormat::Json => subscriber.with(log.json().with_filter(filter)).try_init(),
    };
    // A program that has a log of its own keeps it.
    if started.is_ok() {
        std::panic::set_hook(Box::new(record_panic));
    }
}

/// A panic is one record: text between those of the log would be no JSON.
fn record_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message: Vec<&str> = message.unwrap_or("no message").lines().collect();
    let thread = std::thread::current();
    let place = panic.location().map(ToString::to_string);
    tracing::error!(
        thread = thread.name(),
        place,
        "a thread panicked: {}",
        message.join(" ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_is_one_record() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt::layer().json();
        let log = log.with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(log);
        // Those of other tests, if they fail meanwhile, are printed as ever.
        let usual = std::panic::take_hook();
        let mine = std::thread::current().id();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == mine {
                record_panic(panic);
            } else {
                usual(panic);
            }
        }));
        tracing::subscriber::with_default(subscriber, || {
            let panicked = std::panic::catch_unwind(|| panic!("first\nsecond"));
            assert!(panicked.is_err());
        });
        drop(std::panic::take_hook());
        let written = lines.0.lock().expect("not poisoned").clone();
        let record: serde_json::Value = serde_json::from_slice(&written).expect("one object");
        assert_eq!(record["level"], "ERROR");
        let fields = &record["fields"];
        assert_eq!(fields["message"], "a thread panicked: first second");
        assert!(
            fields["place"]
                .as_str()
                .is_some_and(|place| place.contains("log.rs"))
        );
    }
}
