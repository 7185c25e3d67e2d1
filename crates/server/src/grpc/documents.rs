//! Metadata, configuration and statistics as messages.

use crate::models::LoadedModel;
use crate::networks::Port;
use crate::service::NAME;
use crate::statistics::Total;
use gatestream_protocol::model_config::SchedulingChoice;
use gatestream_protocol::model_metadata_response::TensorMetadata;
use gatestream_protocol::{
    DataType, InferStatistics, ModelConfig, ModelDynamicBatching, ModelInput,
    ModelMetadataResponse, ModelOutput, ModelSequenceBatching, ModelStatistics,
    ModelTransactionPolicy, StatisticDuration,
};

pub fn metadata(of: &LoadedModel, versions: &[u64]) -> ModelMetadataResponse {
    let port = |port: &Port| TensorMetadata {
        name: port.name.clone(),
        datatype: port.datatype.name().to_owned(),
        shape: port.shape.clone(),
    };
    let interface = of.network.interface();
    ModelMetadataResponse {
        name: of.name.clone(),
        versions: versions.iter().map(u64::to_string).collect(),
        platform: NAME.to_owned(),
        inputs: interface.needed().map(port).collect(),
        outputs: interface.outputs.iter().map(port).collect(),
    }
}

pub fn config(of: &LoadedModel) -> ModelConfig {
    let interface = of.network.interface();
    let datatype = |port: &Port| {
        let named = DataType::from_str_name(port.datatype.config_name());
        named.unwrap_or(DataType::TypeInvalid).into()
    };
    let input = |port: &Port| ModelInput {
        name: port.name.clone(),
        data_type: datatype(port),
        dims: interface.dims(port).to_vec(),
        optional: port.is_optional,
    };
    let output = |port: &Port| ModelOutput {
        name: port.name.clone(),
        data_type: datatype(port),
        dims: interface.dims(port).to_vec(),
    };
    ModelConfig {
        name: of.name.clone(),
        platform: NAME.to_owned(),
        backend: NAME.to_owned(),
        max_batch_size: interface.max_batch.try_into().unwrap_or(i32::MAX),
        input: interface.needed().map(input).collect(),
        output: interface.outputs.iter().map(output).collect(),
        scheduling_choice: Some(if of.takes_only_sequences {
            SchedulingChoice::SequenceBatching(ModelSequenceBatching {
                max_sequence_idle_microseconds: of
                    .sequences
                    .idle()
                    .as_micros()
                    .try_into()
                    .unwrap_or(u64::MAX),
            })
        } else {
            SchedulingChoice::DynamicBatching(ModelDynamicBatching {})
        }),
        model_transaction_policy: Some(ModelTransactionPolicy {
            decoupled: interface.is_streaming,
        }),
    }
}

pub fn statistics(of: &LoadedModel) -> ModelStatistics {
    let total = |total: &Total| {
        Some(StatisticDuration {
            count: total.count(),
            ns: total.nanoseconds(),
        })
    };
    let none = Some(StatisticDuration::default());
    let statistics = &of.statistics;
    ModelStatistics {
        name: of.name.clone(),
        version: of.version.to_string(),
        last_inference: statistics.last_milliseconds(),
        inference_count: statistics.rows(),
        execution_count: of.batches(),
        inference_stats: Some(InferStatistics {
            success: total(&statistics.success),
            fail: total(&statistics.fail),
            queue: total(&statistics.queue),
            compute_input: total(&statistics.compute_input),
            compute_infer: total(&statistics.compute_infer),
            compute_output: total(&statistics.compute_output),
            cache_hit: none,
            cache_miss: none,
        }),
    }
}
