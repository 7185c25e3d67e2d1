//! Profiles, tuning and plans of whole graphs.

#[path = "common/npz.rs"]
mod npz;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gatestream::tune::Effort;
use gatestream_network::{
    Network, NetworkError, NetworkPlan, NetworkTuning, Tensor, TuningProgress,
};
use npz::Case;

fn model(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    folder.join(format!("{name}.onnx"))
}

/// BiDAF has LSTMs of five nodes: the phrase's twice, two of the modeling layer, and the output's.
fn bidaf() -> (Network, Case) {
    let path = model("application_bidaf");
    let case = Case::open(&path.with_extension("npz"));
    (Network::open(path).unwrap(), case)
}

fn outputs(network: &Network, case: &Case) -> Vec<Tensor> {
    let outputs = network.run(&case.borrowed()).unwrap();
    outputs.into_iter().map(|output| output.tensor).collect()
}

fn brief() -> NetworkTuning {
    NetworkTuning {
        budget: Duration::from_millis(200),
        ..NetworkTuning::default()
    }
}

fn go_on(_: &TuningProgress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_profile_has_each_region_with_its_sizes() {
    let (network, case) = bidaf();
    let run = network.profile(&case.borrowed()).unwrap();
    let found = run.profile.regions.iter();
    let mut sizes: Vec<_> = found
        .map(|region| {
            assert_eq!(region.operator, "LSTM");
            (region.input, region.output, region.batch, region.steps)
        })
        .collect();
    sizes.sort_unstable();
    // Table 2 with an embedding of 5 and 6 hidden units: question of 4 steps, context of 9.
    let expected = [
        (5, 12, 1, 4),
        (5, 12, 1, 9),
        (12, 12, 1, 9),
        (48, 12, 1, 9),
        (84, 12, 1, 9),
    ];
    assert_eq!(sizes, expected);
    assert!(run.profile.recurrent() <= run.profile.total);
    let share = run.profile.recurrent_share();
    assert!(share > 0.0 && share <= 1.0, "{share}");
    // Later runs have records of their own.
    let again = network.profile(&case.borrowed()).unwrap();
    assert_eq!(again.profile.regions.len(), expected.len());
}

#[test]
fn a_tuned_network_gives_the_same_bits_and_its_plan_survives_the_file() {
    let (network, case) = bidaf();
    let expected = outputs(&network, &case);
    let mut nodes = Vec::new();
    let tuned = network.tune(&case.borrowed(), brief(), |progress| {
        if nodes.last().map(String::as_str) != Some(progress.node) {
            nodes.push(progress.node.to_owned());
        }
        ControlFlow::Continue(())
    });
    let tuned = tuned.unwrap();
    assert!(!tuned.interrupted);
    assert_eq!(tuned.plan.regions().collect::<Vec<_>>(), nodes);
    assert_eq!(nodes.len(), 5);
    for region in &tuned.regions {
        let sizes: Vec<_> = region
            .plan
            .entries
            .iter()
            .map(|e| (e.batch, e.steps))
            .collect();
        assert!(sizes == [(1, 4)] || sizes == [(1, 9)], "{sizes:?}");
    }
    assert_eq!(outputs(&network, &case), expected);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bidaf.plan");
    tuned.plan.save(&path).unwrap();
    let read = NetworkPlan::load(&path).unwrap();
    assert_eq!(read, tuned.plan);
    let (other, _) = bidaf();
    other.use_plan(Some(read)).unwrap();
    assert_eq!(outputs(&other, &case), expected);
    // It is the plan that runs.
    let planned: Vec<String> = (tuned.regions.iter())
        .map(|region| region.plan.entries[0].configuration.to_string())
        .collect();
    let profile = other.profile(&case.borrowed()).unwrap().profile;
    for (node, words) in nodes.iter().zip(planned) {
        let region = profile.regions.iter().find(|region| region.node == *node);
        assert_eq!(region.unwrap().plan, words);
    }
}

#[test]
fn each_region_is_reported_even_without_a_race() {
    let (network, case) = bidaf();
    let estimate = NetworkTuning {
        effort: Effort::Estimate,
        ..NetworkTuning::default()
    };
    let mut nodes = Vec::new();
    let tuned = network.tune(&case.borrowed(), estimate, |progress| {
        assert!((0.0..=1.0).contains(&progress.fraction));
        nodes.push(progress.node.to_owned());
        ControlFlow::Continue(())
    });
    nodes.dedup();
    assert_eq!(tuned.unwrap().plan.regions().collect::<Vec<_>>(), nodes);
}

#[test]
fn an_interrupted_tuning_keeps_the_earlier_plans() {
    let (network, case) = bidaf();
    let first = network.tune(&case.borrowed(), brief(), go_on).unwrap();
    let stopped = network.tune(&case.borrowed(), brief(), |_| ControlFlow::Break(()));
    let stopped = stopped.unwrap();
    assert!(stopped.interrupted);
    let mut nodes: [Vec<&str>; 2] =
        [&first.plan, &stopped.plan].map(|plan| plan.regions().collect());
    nodes.iter_mut().for_each(|nodes| nodes.sort_unstable());
    assert_eq!(nodes[0], nodes[1]);
}

#[test]
fn plans_of_other_models_are_refused_and_lose_nothing() {
    let (network, case) = bidaf();
    let expected = outputs(&network, &case);
    let other = model("05_manual_bidirectional_t_last_step_script");
    let of_other = Case::open(&other.with_extension("npz"));
    let other = Network::open(other).unwrap();
    let plan = other
        .tune(&of_other.borrowed(), brief(), go_on)
        .unwrap()
        .plan;
    let foreign = plan.regions().next().unwrap().to_owned();

    let tuned = network.tune(&case.borrowed(), brief(), go_on).unwrap().plan;
    let node = tuned.regions().next().unwrap().to_owned();
    let renamed = |to: &str| {
        let text = plan.to_text().replace(
            &format!("region \"{}\"", foreign.escape_debug()),
            &format!("region \"{}\"", to.escape_debug()),
        );
        NetworkPlan::from_text(&text).unwrap()
    };
    let refused = network.use_plan(Some(renamed("elsewhere"))).unwrap_err();
    assert!(
        matches!(refused, NetworkError::PlanFile { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("elsewhere"), "{refused}");
    assert_eq!(outputs(&network, &case), expected);

    // Of a region of this name, but of other sizes.
    network.use_plan(Some(renamed(&node))).unwrap();
    let refused = network.run(&case.borrowed()).unwrap_err().to_string();
    assert!(refused.contains(&node), "{refused}");
    assert!(refused.contains("another model"), "{refused}");
    network.use_plan(None).unwrap();
    assert_eq!(outputs(&network, &case), expected);
}
