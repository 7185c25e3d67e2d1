//! The models that the requests are for.

use std::sync::OnceLock;

use gatestream::model::Lstm;
use gatestream_server::in_process::InProcess;

/// Sequences and whole requests; a decoder.
pub const MODELS: [&str; 2] = ["lstm", "g2p"];

/// The server, started once.
pub fn server() -> &'static InProcess {
    static SERVER: OnceLock<InProcess> = OnceLock::new();
    SERVER.get_or_init(|| {
        // Read again when clients ask for the index.
        let folder = tempfile::tempdir().expect("a folder").keep();
        let path = |name: &str| folder.join(name).join("1").join("model.safetensors");
        for model in MODELS {
            std::fs::create_dir_all(path(model).parent().expect("a folder")).expect("made");
        }
        let lstm = Lstm::new(2, 3).random(1).expect("a model");
        lstm.save_safetensors(path("lstm")).expect("saved");
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models");
        std::fs::copy(format!("{examples}/g2p.safetensors"), path("g2p")).expect("copied");
        let config = folder.join("g2p").join("config.toml");
        std::fs::copy(format!("{examples}/config.toml"), config).expect("copied");
        InProcess::new(&folder)
    })
}
