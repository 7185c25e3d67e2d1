//! Sequences whose states the server holds: the bits of the whole sequence, clear ends.

mod common;

use std::time::{Duration, Instant};

use common::{FEATURES, HIDDEN, Running, expected, output, part, request, steps};
use serde_json::{Value, json};

fn ids() -> [Value; 3] {
    [json!(7), json!("7"), json!(u64::MAX)]
}

#[test]
fn parts_have_the_bits_of_the_whole() {
    let running = Running::new();
    let mut rng = fastrand::Rng::with_seed(1);
    let all: Vec<(Value, Vec<f32>)> = ids().map(|id| (id, steps(&mut rng, 12))).into();
    let mut found: Vec<Vec<f32>> = vec![Vec::new(); all.len()];
    let mut last = Vec::new();
    // All sequences at the same time, in parts of 1, 4 and 7 steps.
    for (from, to) in [(0, 1), (1, 5), (5, 12)] {
        for ((id, xs), found) in all.iter().zip(&mut found) {
            let xs = &xs[from * FEATURES..to * FEATURES];
            let answer = running.infer("lstm", &part(xs, id, from == 0, to == 12));
            found.extend(output(&answer, "output"));
            last.push(output(&answer, "cn"));
        }
    }
    for (((_, xs), found), cn) in all.iter().zip(found).zip(&last[2 * all.len()..]) {
        let whole = expected(&common::lstm(1), xs);
        assert_eq!((found, cn), (whole.y, &whole.cn));
    }
}

#[test]
fn a_sequence_begins_once_and_ends_once() {
    let running = Running::new();
    let x = [0.5; FEATURES];
    let id = json!(1);
    let send = |start, end| running.infer("lstm", &part(&x, &id, start, end));
    let unknown = send(false, false);
    assert_eq!(unknown.status, 404);
    assert!(
        unknown.error().contains("must specify the START flag"),
        "{unknown:?}"
    );
    assert_eq!(send(true, false).status, 200);
    let again = send(true, false);
    assert_eq!(again.status, 409, "{again:?}");
    assert_eq!(
        send(false, false).status,
        200,
        "the refused request changed nothing"
    );
    assert_eq!(send(false, true).status, 200);
    assert_eq!(send(false, false).status, 404, "it has ended");
    // The id is free, and a single request is a whole sequence.
    let whole = expected(&common::lstm(1), &x).y;
    assert_eq!(output(&send(true, true), "output"), whole);
    assert_eq!(send(true, true).status, 200);
}

#[test]
fn requests_that_do_not_fit_leave_the_states_as_they_are() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(3), 4);
    let id = json!("s");
    running.infer("lstm", &part(&xs[..FEATURES], &id, true, false));
    let mut wrong = part(&xs[FEATURES..], &id, false, false);
    wrong["inputs"][0]["shape"] = json!([1, FEATURES, 3]);
    for (name, value) in [
        ("shape", json!([3, 1, FEATURES])),
        ("shape", json!([1, 9, 1])),
        ("data", json!([1.0])),
        ("name", json!("x")),
    ] {
        let mut wrong = part(&xs[FEATURES..], &id, false, false);
        wrong["inputs"][0][name] = value;
        assert_eq!(running.infer("lstm", &wrong).status, 400, "{wrong}");
    }
    let mut late = part(&xs[FEATURES..], &id, false, false);
    late["parameters"]["timeout"] = json!(1);
    assert_eq!(running.infer("lstm", &late).status, 504);
    let rest = running.infer("lstm", &part(&xs[FEATURES..], &id, false, true));
    assert_eq!(
        output(&rest, "output"),
        expected(&common::lstm(1), &xs).y[HIDDEN..]
    );
}

/// A request that is late amid its steps has changed the states by a part of them.
#[test]
fn a_sequence_ends_with_a_request_that_ends_amid_its_steps() {
    let running = Running::new();
    let xs = vec![0.1; 9_000 * FEATURES];
    let (mut amid, mut before) = (0, 0);
    for milliseconds in 1..200 {
        let id = json!(milliseconds);
        let send = |xs: &[f32], start: bool, timeout: u64| {
            let mut part = part(xs, &id, start, false);
            part["parameters"]["timeout"] = json!(timeout);
            running.infer("lstm", &part)
        };
        assert_eq!(send(&xs[..FEATURES], true, 0).status, 200);
        let late = send(&xs, false, 1_000 * milliseconds);
        if late.status == 200 {
            break;
        }
        assert_eq!(late.status, 504, "{late:?}");
        let next = send(&xs[..FEATURES], false, 0);
        match next.status {
            // None of its steps was computed: the states are those of the first request.
            200 => {
                let two = expected(&common::lstm(1), &xs[..2 * FEATURES]).y;
                assert_eq!(output(&next, "output"), two[HIDDEN..]);
                before += 1;
            }
            _ => {
                assert_eq!(next.status, 404, "{next:?}");
                assert!(next.error().contains("amid the steps"), "{next:?}");
                amid += 1;
            }
        }
    }
    assert!(
        amid > 0 && before > 0,
        "{amid} ended amid their steps, {before} before"
    );
}

/// As if it had not begun: a client may send it again.
#[test]
fn a_first_request_that_fails_opens_nothing() {
    let running = Running::new();
    let mut failed = 0;
    for id in 1..100u64 {
        let mut first = part(&[0.5; FEATURES], &json!(id), true, false);
        first["parameters"]["timeout"] = json!(10 * id);
        if running.infer("lstm", &first).status == 504 {
            failed += 1;
            first["parameters"]["timeout"] = json!(0);
            assert_eq!(running.infer("lstm", &first).status, 200);
        }
    }
    assert!(failed > 0);
}

#[test]
fn a_model_that_reads_in_reverse_has_no_sequences() {
    let running = Running::new();
    let answer = running.infer("both", &part(&[0.5; FEATURES], &json!(1), true, false));
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("without sequence_id"), "{answer:?}");
}

#[test]
fn a_model_of_sequences_only_says_so_in_its_configuration() {
    let running = Running::with(&common::options(), |folder| {
        common::configure(
            folder,
            "lstm",
            "[sequences]\nonly = true\nidle_seconds = 5\n",
        );
    });
    let answer = running.infer("lstm", &request(&[0.5; FEATURES]));
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("sequence_start"), "{answer:?}");
    let config = running.get("/v2/models/lstm/config").json;
    let idle = &config["sequence_batching"]["max_sequence_idle_microseconds"];
    assert_eq!(
        (idle, &config["max_batch_size"]),
        (&json!(5_000_000), &json!(1))
    );
}

#[test]
fn an_idle_sequence_ends_and_says_why() {
    let running = Running::with(&common::options(), |folder| {
        common::configure(folder, "lstm", "[sequences]\nidle_seconds = 0.05\n");
    });
    let send = |start| running.infer("lstm", &part(&[0.5; FEATURES], &json!(1), start, false));
    assert_eq!(send(true).status, 200);
    let end = Instant::now() + Duration::from_secs(30);
    let open = || {
        let status = running.get("/status").json;
        let models = status["models"].as_array().expect("a list");
        models
            .iter()
            .map(|model| model["sequences"].as_u64().expect("a number"))
            .sum::<u64>()
    };
    while open() > 0 {
        assert!(Instant::now() < end, "it is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
    let answer = send(false);
    assert_eq!(answer.status, 404);
    assert!(
        answer.error().contains("no request came for 0.05 s"),
        "{answer:?}"
    );
    assert_eq!(send(true).status, 200);
}

#[test]
fn clients_and_models_have_limits_of_sequences() {
    let running = Running::with(&common::options(), |folder| {
        common::configure(folder, "lstm", "[sequences]\nper_client = 2\n");
        common::save(folder, "few", 1, &common::lstm(2));
        common::configure(folder, "few", "[limits]\nsequences = 1\n");
    });
    let start = |model: &str, id: u64| {
        running
            .infer(model, &part(&[0.5; FEATURES], &json!(id), true, false))
            .status
    };
    assert_eq!([1, 2, 3].map(|id| start("lstm", id)), [200, 200, 429]);
    running.infer("lstm", &part(&[0.5; FEATURES], &json!(1), false, true));
    assert_eq!(start("lstm", 4), 200);
    assert_eq!([1, 2].map(|id| start("few", id)), [200, 429]);
}

/// Requests go to the new weights; a sequence keeps the ones that it began with.
#[test]
fn a_reload_keeps_open_sequences() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(5), 6);
    let id = json!(1);
    let send = |from: usize, to: usize| {
        let part = part(&xs[from * FEATURES..to * FEATURES], &id, from == 0, to == 6);
        output(&running.infer("lstm", &part), "output")
    };
    let mut found = send(0, 2);
    common::save(running.folder.path(), "lstm", 1, &common::lstm(9));
    let loaded = running.post("/v2/repository/models/lstm/load", &json!({}));
    assert_eq!(loaded.status, 200, "{loaded:?}");
    found.extend(send(2, 4));
    let other = running.infer("lstm", &request(&xs));
    assert_eq!(output(&other, "output"), expected(&common::lstm(9), &xs).y);
    found.extend(send(4, 6));
    assert_eq!(found, expected(&common::lstm(1), &xs).y);
    // A new one begins with the new weights.
    found = send(0, 6);
    assert_eq!(found, expected(&common::lstm(9), &xs).y);
}

#[test]
fn an_unloaded_model_ends_its_sequences() {
    let running = Running::new();
    let send = |start| running.infer("lstm", &part(&[0.5; FEATURES], &json!(1), start, false));
    send(true);
    assert_eq!(
        running
            .post("/v2/repository/models/lstm/unload", &json!({}))
            .status,
        200
    );
    assert_eq!(send(false).status, 404);
    assert_eq!(
        running
            .post("/v2/repository/models/lstm/unload", &json!({}))
            .status,
        404
    );
    assert_eq!(
        running
            .post("/v2/repository/models/lstm/load", &json!({}))
            .status,
        200
    );
    assert_eq!(send(false).status, 404);
    assert_eq!(send(true).status, 200);
}

/// New requests are refused, open sequences go on until they end.
#[test]
fn a_stop_waits_for_open_sequences() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(6), 3);
    let id = json!(1);
    let url = running.url("/v2/models/lstm/infer");
    let agent = common::agent();
    let send = |body: &Value| {
        let mut answer = agent
            .post(&url)
            .send(body.to_string().as_bytes())
            .expect("an answer");
        let text = answer.body_mut().read_to_string().expect("text");
        (answer.status().as_u16(), text)
    };
    let parts = [0, 1, 2].map(|step| {
        part(
            &xs[step * FEATURES..][..FEATURES],
            &id,
            step == 0,
            step == 2,
        )
    });
    assert_eq!(send(&parts[0]).0, 200);
    let ready = running.url("/v2/health/ready");
    let Running { server, folder, .. } = running;
    let stopping = std::thread::spawn(move || server.stop(Duration::from_secs(60)));
    let end = Instant::now() + Duration::from_secs(30);
    while agent
        .get(&ready)
        .call()
        .expect("an answer")
        .status()
        .as_u16()
        == 200
    {
        assert!(Instant::now() < end, "it is still ready");
    }
    assert_eq!(send(&request(&xs)).0, 503);
    assert_eq!(send(&part(&xs, &json!(2), true, true)).0, 503);
    assert_eq!(send(&parts[1]).0, 200);
    assert_eq!(send(&parts[2]).0, 200);
    assert_eq!(
        stopping.join().expect("no panic"),
        0,
        "nothing was broken off"
    );
    drop(folder);
}

#[test]
fn a_stop_breaks_off_what_does_not_end() {
    let running = Running::new();
    running.infer("lstm", &part(&[0.5; FEATURES], &json!(1), true, false));
    let begun = Instant::now();
    assert_eq!(running.server.stop(Duration::from_millis(100)), 1);
    assert!(begun.elapsed() < Duration::from_secs(30));
}
