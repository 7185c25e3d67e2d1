//! Compiles the messages of the protocol, without the program `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["open_inference.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Tensors are not copied out of the received message.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}
