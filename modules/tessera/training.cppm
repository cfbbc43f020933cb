// Training: optimizers, parallel plans, captured steps, the step, checkpoints.
export module tessera:training;

import tessera.capture;
import tessera.checkpoint;
import tessera.execute;
import tessera.graph;
import tessera.optim;
import tessera.parallel;
import tessera.passes;
import tessera.program;
import tessera.train;

export namespace tessera::optim {

// Optimizers, schedules, clipping, loss scaling.
using optim::adamw, optim::adamw_rule, optim::AdamWOptions, optim::Decay, optim::load_rule,
    optim::Optimizer, optim::OptimizerOptions, optim::ParameterGroup, optim::sgd, optim::sgd_rule,
    optim::SgdOptions, optim::UpdateRule;
using optim::clamp_gradients, optim::clip_gradients, optim::Clipping, optim::global_gradient_norm,
    optim::NonFinite;
using optim::GradScaler, optim::GradScalerOptions, optim::Lbfgs, optim::LbfgsOptions;
using optim::Schedule, optim::ScheduleKind, optim::ScheduleUnit;

}  // namespace tessera::optim

export namespace tessera::parallel {

// Styles (also of a program's own), composed in a plan; fully sharded modules and precision by
// hand.
using parallel::fully_shard, parallel::FullySharded, parallel::FullyShardOptions,
    parallel::Precision, parallel::set_precision, parallel::ShardDim;
using parallel::gradient_sync_enabled, parallel::GradientFinisher;
using parallel::ParallelStyle, parallel::StyleFacts, parallel::StyleTarget, parallel::apply,
    parallel::Options, parallel::ParallelPlan, parallel::plan_of, parallel::StyleEntry,
    parallel::StyleSummary;

}  // namespace tessera::parallel

export namespace tessera {

// Steps as programs.
using tessera::CapturedFunction, tessera::CapturedSteps, tessera::Executor, tessera::lower,
    tessera::Program, tessera::program_of, tessera::Recorder, tessera::Recording, tessera::Replay,
    tessera::ReplayCounts, tessera::Role, tessera::SectionKind, tessera::StepVariables,
    tessera::to_string;
using tessera::compile, tessera::CompiledStep, tessera::CompileOptions, tessera::guard,
    tessera::StepBody, tessera::StepCall, tessera::StepFactory, tessera::StepGuards,
    tessera::StepNumbers, tessera::StepSums;

// The training step, and a loop of them.
using tessera::BatchPart, tessera::Evaluation, tessera::LossSum, tessera::StepBatch,
    tessera::StepFunctions, tessera::StepResult, tessera::Training, tessera::VirtualShards;
using tessera::RunCheckpoints, tessera::RunSteps, tessera::SaveSchedule, tessera::take_steps;

// Checkpoints of any mesh, read on any other; files of others.
using tessera::check_state, tessera::checkpoint_folder, tessera::CheckpointBase,
    tessera::CheckpointReader, tessera::checkpoints_in, tessera::CheckpointSaver,
    tessera::latest_checkpoint, tessera::load_state, tessera::load_weights, tessera::LoadOptions,
    tessera::LoadReport, tessera::prune_checkpoints, tessera::save_checkpoint, tessera::SaveOptions;
using tessera::compare_tensors, tessera::CompareOptions, tessera::TensorDifference;
using tessera::export_weights, tessera::ExportOptions, tessera::open_tensors,
    tessera::OpenedTensors, tessera::SafetensorsFile, tessera::SafetensorsFolder,
    tessera::SafetensorsWriter, tessera::TensorInfo, tessera::TensorSource;

}  // namespace tessera

export namespace tessera::graph {

// How captured steps are changed and executed.
using graph::AddedState, graph::Change, graph::ChangeFacts, graph::data_parallel,
    graph::DataParallelMode, graph::DataParallelOptions, graph::default_changes,
    graph::default_passes, graph::Editor, graph::ExecutionOptions, graph::fit_memory,
    graph::make_executor, graph::register_anchor, graph::run_passes, graph::verify,
    graph::verify_same;

}  // namespace tessera::graph
