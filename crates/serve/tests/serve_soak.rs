//! Random joins, cancels, deadlines, failures, growth, streams, parts, reloads of a second model,
//! exports of the states of streams, forks and changes of the process's CPU set, on one worker and
//! then on two. Memory stays flat, every request ends once, and each answer is that of the request
//! alone.
//!
//!     GATESTREAM_SOAK_SECONDS=600 cargo test --release --test serve_soak

#[cfg(target_os = "linux")]
#[path = "../../../tests/common/cpusets.rs"]
mod cpusets;
#[cfg(unix)]
#[path = "../../../tests/common/fork.rs"]
mod fork;
#[path = "../../../tests/common/resident.rs"]
mod resident;
#[path = "common/workload.rs"]
mod workload;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gatestream_serve::Engine;
use gatestream_serve::RequestError;
use gatestream_serve::engine::{EngineOptions, ModelOptions, StreamError, SubmitError, Workers};
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::{End, Limits, Refused};
use workload::{E, Growing, LongStream, Workload, bits};

#[test]
fn memory_stays_flat_and_every_request_ends_once() {
    let seconds = std::env::var("GATESTREAM_SOAK_SECONDS").ok();
    let seconds: f64 = seconds.map_or(3.0, |s| s.parse().expect("seconds"));
    let workload = Workload::new();
    for (workers, policy) in [
        (Workers::OneOverAll, PolicyKind::Cellular),
        (Workers::Cores(vec![vec![0], vec![1]]), PolicyKind::Shortest),
        (Workers::OnePerCore, PolicyKind::EBatch),
    ] {
        let options = EngineOptions {
            limits: Limits {
                requests: 300,
                ..Limits::default()
            },
            workers,
            policy,
            ..EngineOptions::default()
        };
        soak(options, &workload, seconds / 3.0);
    }
}

#[derive(Default)]
struct Seen {
    submitted: AtomicU64,
    refused: AtomicU64,
    /// Submitted with a callback, and told by it.
    by_call: AtomicU64,
    called: AtomicU64,
    /// By [`Fails`].
    failed: [AtomicU64; 5],
}

fn soak(options: EngineOptions, asked: &Workload, seconds: f64) {
    let Workload {
        cells,
        network,
        asked,
        long,
    } = asked;
    let engine = Engine::start(cells.clone(), &options).unwrap();
    let (stop, seen) = (AtomicBool::new(false), Arc::new(Seen::default()));
    let add = |count: &AtomicU64| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let user = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut open = Vec::new();
        let mut stream = engine.stream(network.lstm.cell(), None).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let asked = &asked[random.usize(..asked.len())];
            let mut request = asked.request().priority(random.u8(0..4));
            if random.usize(0..4) == 0 {
                request =
                    request.deadline(Instant::now() + Duration::from_micros(random.u64(0..3000)));
            }
            let submitted = match random.usize(0..8) {
                0 => {
                    let told = Arc::clone(&seen);
                    let done = move |_| {
                        told.called.fetch_add(1, Ordering::Relaxed);
                    };
                    engine.submit_with(request, done).map(|key| {
                        add(&seen.by_call);
                        if random.usize(0..4) == 0 {
                            engine.cancel(key);
                        }
                    })
                }
                _ => engine
                    .submit(request)
                    .map(|ticket| open.push((ticket, asked))),
            };
            match submitted {
                Ok(()) => add(&seen.submitted),
                Err(SubmitError::Refused(Refused::Overloaded { .. })) => add(&seen.refused),
                Err(other) => panic!("{other}"),
            }
            match random.usize(0..6) {
                0 if !open.is_empty() => drop(open.swap_remove(random.usize(..open.len()))),
                1 => match stream.push(&[0.25; E]) {
                    Ok(step) if random.bool() => drop(step.wait()),
                    Ok(_) | Err(StreamError::Submit(_)) => {}
                    Err(_) => stream = engine.stream(network.lstm.cell(), None).unwrap(),
                },
                _ => {}
            }
            while open.len() > 200 {
                let (ticket, asked) = open.swap_remove(random.usize(..open.len()));
                if let Some(failed) = asked.check(&ticket.wait()) {
                    add(&seen.failed[failed as usize]);
                }
            }
            if random.usize(0..50_000) == 0 {
                stream = engine.stream(network.lstm.cell(), None).unwrap();
            }
        }
    };
    // A second model comes and goes; the symbols of its decoders come as parts.
    let reload = || {
        let mut random = fastrand::Rng::with_seed(9);
        let mut reloads = 0;
        while !stop.load(Ordering::Relaxed) {
            let options = ModelOptions::default();
            let model = engine.add_model(cells.clone(), &options).unwrap();
            let mut stream = model.stream(network.lstm.cell(), None).unwrap();
            let mut accepted = Vec::new();
            for _ in 0..50 {
                let asked = &asked[random.usize(..asked.len())];
                let parts: Arc<Mutex<Vec<f32>>> = Arc::default();
                let told = Arc::clone(&parts);
                let part = move |part: &[f32]| told.lock().unwrap().extend_from_slice(part);
                match model.submit(asked.request().on_part(part)) {
                    Ok(ticket) => {
                        add(&seen.submitted);
                        accepted.push((ticket, asked, parts));
                    }
                    Err(SubmitError::Refused(Refused::Overloaded { .. })) => add(&seen.refused),
                    Err(other) => panic!("{other}"),
                }
            }
            let step = stream.push(&[0.25; E]).unwrap();
            let cancels = random.usize(0..4) == 0;
            if cancels {
                model.cancel_all();
            }
            model.remove();
            assert!(step.wait().is_ok() || cancels);
            for (ticket, asked, parts) in accepted {
                let ended = ticket.wait();
                if let (Ok(answer), Some(Growing::Decodes(_))) = (&ended, &asked.growing) {
                    assert_eq!(*parts.lock().unwrap(), answer.values);
                }
                let failed = asked.check(&ended);
                assert!(ended != Err(RequestError::Cancelled) || cancels);
                if let Some(failed) = failed {
                    add(&seen.failed[failed as usize]);
                }
            }
            let gone = model.submit(asked[0].request()).err();
            assert_eq!(gone, Some(SubmitError::Refused(Refused::NoModel)));
            drop(stream);
            assert!(model.stats().is_none());
            reloads += 1;
        }
        reloads
    };
    // A stream goes on from the states of the one before.
    let export = || {
        let mut random = fastrand::Rng::with_seed(10);
        let mut exports = 0;
        let mut steps = long.expected.iter().cycle().enumerate();
        let mut stream = engine.stream(network.lstm.cell(), None).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let (at, expected) = steps.next().unwrap();
            if at % LongStream::STEPS == 0 {
                stream = engine.stream(network.lstm.cell(), None).unwrap();
            }
            let step = stream.push(long.input(at)).unwrap();
            if random.usize(0..20) == 0 {
                let states = if random.bool() {
                    stream.close().wait().unwrap()
                } else {
                    assert!(step.wait().is_ok());
                    let states = stream.state();
                    stream = engine.stream(network.lstm.cell(), Some(&states)).unwrap();
                    exports += 1;
                    continue;
                };
                stream = engine.stream(network.lstm.cell(), Some(&states)).unwrap();
                exports += 1;
            }
            assert_eq!(bits(&step.wait().unwrap()), bits(expected));
        }
        exports
    };
    // The process is forked, and its CPU set shrinks and grows.
    let disturb = || {
        let mut disturbances = 0;
        while !stop.load(Ordering::Relaxed) {
            #[cfg(unix)]
            assert!(fork::returns_in_child(|| {
                let refused = engine.submit(asked[0].request()).err();
                assert_eq!(refused, Some(SubmitError::Forked));
                let refused = engine.stream(network.lstm.cell(), None).err();
                assert_eq!(refused, Some(SubmitError::Forked.into()));
                let refused = engine.add_model(cells.clone(), &ModelOptions::default());
                assert!(refused.is_err());
            }));
            #[cfg(target_os = "linux")]
            {
                let confined = cpusets::confine(disturbances % 2);
                std::thread::sleep(Duration::from_millis(20));
                drop(confined);
            }
            std::thread::sleep(Duration::from_millis(100));
            disturbances += 1;
        }
        disturbances
    };
    let resident = || cfg!(target_os = "linux").then(resident::resident);
    let begin = Instant::now();
    let (mut early, mut late) = (None, None);
    std::thread::scope(|scope| {
        let user = &user;
        let users: Vec<_> = (0..2).map(|seed| scope.spawn(move || user(seed))).collect();
        let reloader = scope.spawn(reload);
        let exporter = scope.spawn(export);
        let disturber = scope.spawn(disturb);
        while begin.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(Duration::from_millis(50));
            let done = begin.elapsed().as_secs_f64() / seconds;
            if done > 0.4 && early.is_none() {
                early = resident();
            }
            late = resident();
            assert!(engine.health().workers.iter().all(|worker| worker.is_alive));
            assert!(engine.stats().models.len() <= 2);
        }
        stop.store(true, Ordering::Relaxed);
        for user in users {
            user.join().unwrap();
        }
        assert!(reloader.join().unwrap() > 0);
        assert!(exporter.join().unwrap() > 0);
        assert!(disturber.join().unwrap() > 0);
    });
    engine.drain();
    let counts = engine.stats().counts;
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let failed: Vec<u64> = seen.failed.iter().map(of).collect();
    println!(
        "{:?}: {} submitted, {} by call, failed {failed:?}, {counts:?}, {early:?} to {late:?} \
         bytes",
        options.workers,
        of(&seen.submitted),
        of(&seen.by_call)
    );
    assert_eq!(counts.live(), 0);
    assert!(counts.submitted >= of(&seen.submitted));
    assert!(counts.refused() >= of(&seen.refused));
    assert_eq!(of(&seen.called), of(&seen.by_call));
    assert_eq!(
        End::ALL.iter().map(|end| counts.of(*end)).sum::<u64>(),
        counts.submitted
    );
    for end in [End::Completed, End::Cancelled, End::Late, End::Failed] {
        assert!(counts.of(end) > 0, "{end:?}: {counts:?}");
    }
    // Each way to fail was taken.
    assert!(failed[1..].iter().all(|&count| count > 0), "{failed:?}");
    if let (Some(early), Some(late)) = (early, late) {
        // What an allocator keeps varies by some megabytes; a request leaked a second would be more
        // in minutes.
        assert!(
            late < 1.1 * early + 4.0 * 1024.0 * 1024.0,
            "from {early} to {late} bytes"
        );
    }
}
