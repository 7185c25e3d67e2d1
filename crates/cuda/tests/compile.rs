//! NVRTC compiles every kernel for every architecture, without a device: no spills, and no more
//! registers than the plan leaves.
#![cfg(feature = "cuda")]

use gatestream::model::{Activation, Builder, Cell, Gru, Lstm, Model, ResetForm, Rnn};
use gatestream_cuda::{
    Device, DriverError, Kernel, LaunchPlan, RecurrenceSize, WeightType, compile,
};

/// If set, the tests fail without NVRTC instead of being skipped.
const REQUIRED: &str = "GATESTREAM_REQUIRE_NVRTC";

/// What the assembler said of a kernel.
struct Used {
    registers: usize,
    spilled_bytes: usize,
}

/// The number before `unit` in the assembler's report.
fn number_before(log: &str, unit: &str) -> usize {
    let (before, _) = log
        .split_once(unit)
        .unwrap_or_else(|| panic!("no {unit:?} in: {log}"));
    let number = before.split_whitespace().next_back().unwrap();
    number
        .parse()
        .unwrap_or_else(|_| panic!("{number:?} before {unit:?}"))
}

/// `None` without NVRTC.
fn used(kernel: &Kernel, device: &Device) -> Option<Used> {
    match compile(kernel, &device.architecture()) {
        Ok(compiled) => {
            assert_eq!(&compiled.cubin[..4], b"\x7fELF");
            Some(Used {
                registers: number_before(&compiled.log, " registers"),
                spilled_bytes: number_before(&compiled.log, " bytes spill stores")
                    + number_before(&compiled.log, " bytes spill loads"),
            })
        }
        Err(DriverError::NoLibrary { library }) => {
            assert!(
                std::env::var_os(REQUIRED).is_none(),
                "{library} is not installed"
            );
            eprintln!("skipped: {library} is not installed");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn check(device: &Device, model: &Model, weights: WeightType, batch: usize) {
    let layer = &model.layers()[0];
    let direction = &layer.directions()[0];
    let size = RecurrenceSize::of_layer(layer, batch, weights);
    for plan in LaunchPlan::candidates(device, size) {
        let kernel = Kernel::recurrent(0, direction, &plan, weights).unwrap();
        let Some(used) = used(&kernel, device) else {
            return;
        };
        let what = format!(
            "{} {:?} {size:?} {plan:?}",
            device.architecture(),
            direction.cell()
        );
        assert_eq!(
            used.spilled_bytes, 0,
            "{} registers, {what}",
            used.registers
        );
        // 65,536 registers for the threads of a block.
        assert!(used.registers * plan.threads() <= 1 << 16, "{what}");
    }
}

fn all_devices(model: &Model, weights: WeightType, batch: usize) {
    for device in &Device::ALL {
        check(device, model, weights, batch);
    }
}

#[test]
fn lstm_of_1024_units() {
    let model = Lstm::new(8, 1024).zeros().unwrap();
    for batch in [1, 16] {
        all_devices(&model, WeightType::F32, batch);
    }
}

#[test]
fn weights_in_16_bits() {
    let model = Lstm::new(8, 1024).zeros().unwrap();
    for weights in [WeightType::Bf16, WeightType::F16] {
        check(&Device::H100, &model, weights, 1);
        check(&Device::A100, &model, weights, 16);
    }
}

#[test]
fn every_cell() {
    let gru = |reset| Gru::new(8, 512).reset(reset).zeros().unwrap();
    let light = Cell::LightGru {
        gate: Activation::Sigmoid,
        candidate: Activation::Relu,
    };
    for model in [
        gru(ResetForm::After),
        gru(ResetForm::Before),
        Builder::<Cell>::with_cell(light, 8, 512).zeros().unwrap(),
        Rnn::new(8, 512).zeros().unwrap(),
    ] {
        check(&Device::H100, &model, WeightType::F32, 4);
        check(&Device::A100, &model, WeightType::F32, 4);
    }
}

#[test]
fn small_and_large_states() {
    for hidden in [64, 256, 2048] {
        let model = Lstm::new(8, hidden).zeros().unwrap();
        check(&Device::H100, &model, WeightType::F32, 8);
    }
}

#[test]
fn other_kernels() {
    for device in &Device::ALL {
        let weights = [WeightType::F32, WeightType::Bf16, WeightType::F16];
        let products = weights.map(Kernel::input_products).into_iter();
        let plain = [
            Kernel::add_directions(),
            Kernel::embed_rows(),
            Kernel::choose_symbols(),
            Kernel::gather_rows(),
            Kernel::signal_done(),
        ];
        for kernel in products.chain(plain) {
            let Some(used) = used(&kernel, device) else {
                return;
            };
            assert_eq!(used.spilled_bytes, 0, "{}", kernel.name);
        }
    }
}

#[test]
fn what_does_not_compile_is_an_error_that_names_the_line() {
    let kernel = Kernel {
        name: "recurrent",
        text: "#line 7 \"recurrent.cu\"\nthis is no kernel;".into(),
    };
    match compile(&kernel, "sm_90") {
        Err(DriverError::Compile { log, .. }) => assert!(log.contains("recurrent.cu(7)"), "{log}"),
        Err(DriverError::NoLibrary { .. }) => {}
        other => panic!("{other:?}"),
    }
}
