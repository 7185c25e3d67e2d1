//! The protocol over gRPC, with the client that is generated from its messages.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{
    FEATURES, HIDDEN, Running, expected, floats, message, message_part, parameter, steps, with_grpc,
};
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::model_infer_request::InferInputTensor;
use gatestream_protocol::*;
use tonic::Code;

fn request(xs: &[f32]) -> ModelInferRequest {
    message(xs, &[])
}

fn part(xs: &[f32], id: &str, start: bool, end: bool) -> ModelInferRequest {
    message_part(xs, ParameterChoice::StringParam(id.into()), start, end)
}

#[test]
fn answers_are_those_of_the_reference() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(1), 6);
    let whole = expected(&common::lstm(1), &xs);
    with_grpc(&running, async |mut client| {
        let response = client
            .model_infer(ModelInferRequest {
                id: "a".into(),
                ..request(&xs)
            })
            .await
            .expect("an answer")
            .into_inner();
        assert_eq!(floats(&response, "output"), whole.y);
        assert_eq!(floats(&response, "hn"), whole.hn);
        assert_eq!(
            (response.id.as_str(), response.model_version.as_str()),
            ("a", "1")
        );
        // The elements in the field of their type.
        let mut typed = request(&xs);
        typed.raw_input_contents.clear();
        typed.inputs[0].contents = Some(InferTensorContents {
            fp32_contents: xs.clone(),
            ..InferTensorContents::default()
        });
        let response = client
            .model_infer(typed)
            .await
            .expect("an answer")
            .into_inner();
        assert_eq!(floats(&response, "output"), whole.y);
    });
}

#[test]
fn errors_have_codes() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(2), 2);
    with_grpc(&running, async |mut client| {
        let mut unknown = request(&xs);
        unknown.model_name = "none".into();
        let mut short = request(&xs);
        short.raw_input_contents[0].truncate(7);
        let mut twice = request(&xs);
        twice.inputs[0].contents = Some(InferTensorContents::default());
        let mut negative = request(&xs);
        negative.inputs[0].shape[0] = -1;
        for (asked, code) in [
            (unknown, Code::NotFound),
            (short, Code::InvalidArgument),
            (twice, Code::InvalidArgument),
            (negative, Code::InvalidArgument),
            (ModelInferRequest::default(), Code::NotFound),
            (part(&xs, "s", false, false), Code::NotFound),
        ] {
            let status = client.model_infer(asked).await.expect_err("refused");
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty());
        }
        let mut late = tonic::Request::new(request(&vec![0.1; 9_000 * FEATURES]));
        late.set_timeout(Duration::from_micros(300));
        let status = client.model_infer(late).await.expect_err("late");
        // The client's own clock may be first.
        let ends = [Code::DeadlineExceeded, Code::Cancelled];
        assert!(ends.contains(&status.code()), "{status:?}");
        client
            .model_infer(request(&xs))
            .await
            .expect("the server goes on");
    });
}

#[test]
fn a_stream_keeps_the_order_of_a_sequence_and_outlives_errors() {
    let running = Running::new();
    let mut rng = fastrand::Rng::with_seed(3);
    let sequences: Vec<Vec<f32>> = (0..5).map(|_| steps(&mut rng, 60)).collect();
    with_grpc(&running, async |mut client| {
        // All at once, without waiting for an answer.
        let mut asked = Vec::new();
        for step in 0..60 {
            for (index, xs) in sequences.iter().enumerate() {
                let x = &xs[step * FEATURES..][..FEATURES];
                let mut part = part(x, &format!("s{index}"), step == 0, step == 59);
                part.id = format!("{index}");
                asked.push(part);
            }
            if step == 7 {
                let mut wrong = request(&[0.0; FEATURES]);
                wrong.model_name = "none".into();
                asked.push(wrong);
            }
        }
        let stream = client.model_stream_infer(tokio_stream::iter(asked)).await;
        let mut stream = stream.expect("a stream").into_inner();
        let mut found = vec![Vec::new(); sequences.len()];
        let mut errors = Vec::new();
        while let Some(message) = stream.message().await.expect("no end by an error") {
            let response = message.infer_response.unwrap_or_default();
            if message.error_message.is_empty() {
                let index: usize = response.id.parse().expect("a number");
                found[index].extend(floats(&response, "output"));
                let last = &response.parameters["triton_final_response"];
                assert_eq!(last, &parameter(ParameterChoice::BoolParam(true)));
            } else {
                errors.push(message.error_message)
            }
        }
        assert_eq!(errors.len(), 1, "{errors:?}");
        for (xs, found) in sequences.iter().zip(found) {
            assert_eq!(found, expected(&common::lstm(1), xs).y);
            assert_eq!(found.len(), 60 * HIDDEN);
        }
    });
}

fn word(letters: &str, model: &str) -> ModelInferRequest {
    let length = letters.len() as i64;
    let letters = letters.bytes().map(|letter| vec![letter]);
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![InferInputTensor {
            name: "source".into(),
            datatype: "BYTES".into(),
            shape: vec![length],
            contents: Some(InferTensorContents {
                bytes_contents: letters.collect(),
                ..InferTensorContents::default()
            }),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    }
}

fn names(response: &ModelInferResponse) -> Vec<String> {
    let mut raw = &response.raw_output_contents[0][..];
    let mut names = Vec::new();
    while let Some((length, rest)) = raw.split_first_chunk::<4>() {
        let (name, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        names.push(String::from_utf8_lossy(name).into_owned());
        raw = rest;
    }
    names
}

#[test]
fn symbols_come_one_by_one_and_words_have_names() {
    let running = Running::with(&common::options(), |folder| {
        common::g2p(folder);
        // The same with beam search.
        let config = common::G2P;
        let beam = folder.join("beam");
        std::fs::create_dir_all(beam.join("3")).expect("a folder");
        let file = Path::new("1").join("model.safetensors");
        std::fs::copy(
            folder.join("g2p").join(file),
            beam.join("3").join("model.safetensors"),
        )
        .expect("copied");
        std::fs::write(beam.join("config.toml"), format!("{config}\nbeam = 4\n")).expect("written");
    });
    // As `cargo run --example pronounce` says.
    let hippopotamus = ["HH", "IH", "P", "AH", "P", "AA", "T", "AH", "M", "AH", "S"];
    with_grpc(&running, async |mut client| {
        let whole = client
            .model_infer(word("hippopotamus", "g2p"))
            .await
            .expect("an answer");
        assert_eq!(names(whole.get_ref()), hippopotamus);
        let mut asked = word("hippopotamus", "g2p");
        let enable = parameter(ParameterChoice::BoolParam(true));
        asked
            .parameters
            .insert("triton_enable_empty_final_response".into(), enable);
        let stream = client.model_stream_infer(tokio_stream::iter([asked])).await;
        let mut stream = stream.expect("a stream").into_inner();
        let mut parts = Vec::new();
        let mut finals = 0;
        while let Some(message) = stream.message().await.expect("no error") {
            let response = message.infer_response.expect("a response");
            let last = &response.parameters["triton_final_response"];
            if last == &parameter(ParameterChoice::BoolParam(true)) {
                assert!(response.outputs.is_empty());
                finals += 1;
            } else {
                parts.push(names(&response))
            }
        }
        assert_eq!(finals, 1);
        assert_eq!(parts, hippopotamus.map(|name| vec![name.to_owned()]));
        let beam = client
            .model_infer(word("hippopotamus", "beam"))
            .await
            .expect("an answer");
        let beam = beam.into_inner();
        assert_eq!(
            names(&beam)[..hippopotamus.len()],
            hippopotamus,
            "the best of four"
        );
        assert_eq!(floats(&beam, "scores").len(), 4);
        let status = client
            .model_infer(word("x8", "g2p"))
            .await
            .expect_err("refused");
        assert!(status.message().contains("\"8\""), "{status:?}");
    });
}

#[test]
fn the_repository_and_the_models_are_told() {
    let running = Running::with(&common::options(), |folder| {
        std::fs::create_dir_all(folder.join("empty")).expect("a folder");
        common::save(folder, "lstm", 2, &common::lstm(2));
        common::configure(folder, "lstm", "versions = \"all\"\n");
    });
    with_grpc(&running, async |mut client| {
        let index = client
            .repository_index(RepositoryIndexRequest::default())
            .await;
        let models = index.expect("an index").into_inner().models;
        let ready = |name: &str, version: &str| {
            let same =
                |m: &&repository_index_response::ModelIndex| m.name == name && m.version == version;
            models.iter().find(same).expect("there").state == "READY"
        };
        assert!(ready("lstm", "1") && ready("lstm", "2") && ready("both", "1"));
        assert!(!ready("empty", ""));
        let asked = ModelConfigRequest {
            name: "lstm".into(),
            version: "1".into(),
        };
        let config = client
            .model_config(asked)
            .await
            .expect("a configuration")
            .into_inner();
        assert_eq!(config.config.expect("one").max_batch_size, 64);
        let asked = ModelMetadataRequest {
            name: "lstm".into(),
            version: String::new(),
        };
        let metadata = client
            .model_metadata(asked)
            .await
            .expect("metadata")
            .into_inner();
        assert_eq!(metadata.versions, ["1", "2"]);
        // Each version has its weights; none means the latest.
        let xs = steps(&mut fastrand::Rng::with_seed(4), 3);
        for (version, seed) in [("1", 1), ("2", 2), ("", 2)] {
            let asked = ModelInferRequest {
                model_version: version.into(),
                ..request(&xs)
            };
            let response = client
                .model_infer(asked)
                .await
                .expect("an answer")
                .into_inner();
            assert_eq!(
                floats(&response, "output"),
                expected(&common::lstm(seed), &xs).y
            );
        }
        let asked = ModelStatisticsRequest {
            name: "lstm".into(),
            version: "2".into(),
        };
        let stats = client
            .model_statistics(asked)
            .await
            .expect("statistics")
            .into_inner();
        let counts = stats.model_stats[0].inference_stats.expect("counts");
        assert_eq!(counts.success.expect("a count").count, 2);
    });
}

#[test]
fn requests_that_cannot_be_read_are_counted() {
    let running = Running::new();
    running.post_bytes("/v2/models/lstm/infer", &[], b"{");
    running.post_bytes("/v2/models/%FF/infer", &[], b"{}");
    with_grpc(&running, async |mut client| {
        let mut wrong = request(&[0.5; FEATURES]);
        wrong.inputs[0].datatype = "FP31".into();
        client
            .model_infer(wrong.clone())
            .await
            .expect_err("refused");
        let stream = client.model_stream_infer(tokio_stream::iter([wrong])).await;
        let mut stream = stream.expect("a stream").into_inner();
        let answer = stream
            .message()
            .await
            .expect("a message")
            .expect("an answer");
        assert_ne!(answer.error_message, "");
    });
    let text = running.text("/metrics");
    let four = "failed_requests_total{model=\"\",version=\"\",reason=\"invalid\"} 4";
    assert!(text.contains(four), "{text}");
}

#[test]
fn health_and_reflection_are_those_of_grpc() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let running = Running::new();
    common::with_channel(running.server.grpc_address(), async |channel| {
        let mut health = HealthClient::new(channel.clone());
        let asked = |service: &str| HealthCheckRequest {
            service: service.into(),
        };
        for name in ["", "inference.GRPCInferenceService", "lstm"] {
            let found = health.check(asked(name)).await.expect(name).into_inner();
            assert_eq!(found.status(), ServingStatus::Serving, "{name}");
        }
        let none = health.check(asked("none")).await.expect_err("unknown");
        assert_eq!(none.code(), Code::NotFound);
        let mut watch = health
            .watch(asked(""))
            .await
            .expect("a stream")
            .into_inner();
        let first = watch.message().await.expect("no error").expect("a message");
        assert_eq!(first.status(), ServingStatus::Serving);
        drop(watch);
        let mut reflection = ServerReflectionClient::new(channel);
        let asked = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let answers = reflection.server_reflection_info(tokio_stream::iter([asked]));
        let mut answers = answers.await.expect("a stream").into_inner();
        let answer = answers
            .message()
            .await
            .expect("no error")
            .expect("a message");
        let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
            panic!("{answer:?}");
        };
        let names: Vec<_> = services
            .service
            .iter()
            .map(|service| &service.name[..])
            .collect();
        assert!(
            names.contains(&"inference.GRPCInferenceService"),
            "{names:?}"
        );
        assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
    });
}
