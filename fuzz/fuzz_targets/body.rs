//! Bodies of requests over HTTP: a byte for the model, two for the length of the JSON (65535: no
//! header), the body.
#![no_main]

mod repository;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[model, high, low], body)) = data.split_first_chunk() else {
        return;
    };
    let model = repository::MODELS[usize::from(model) % repository::MODELS.len()];
    let length = u16::from_be_bytes([high, low]);
    let text = length.to_string();
    let headers: &[(&str, &str)] = match length {
        u16::MAX => &[],
        _ => &[("inference-header-content-length", &text)],
    };
    let status = repository::server().infer(model, headers, body);
    assert!(
        status < 500 || [501, 503, 504].contains(&status),
        "{status}"
    );
});
