//! Keeps the library in memory when ONNX Runtime unregisters it: a session that outlives the
//! registration still calls it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS");
    if system.is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    }
}
