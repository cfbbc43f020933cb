// Whole runs, as `tessera train` does them; models as others store them; text.
export module tessera:runs;

import tessera.coded;
import tessera.evaluation;
import tessera.hub;
import tessera.runs;
import tessera.text;

export namespace tessera::hub {

// Models of transformers, ggml and PEFT: config, weights, tokenizer, updates.
using hub::AdapterWeights;
using hub::BaseUse, hub::WholeCheckpoint;
using hub::check_peft, hub::load_model_weights, hub::load_peft, hub::make_model, hub::Updates,
    hub::updates_of;
using hub::family_of, hub::gguf_file, hub::hub_config, hub::ModelShape, hub::parse_hub_config,
    hub::read_model_folder, hub::sizes_of, hub::stored_model;
using hub::folder_tokenizer, hub::model_tokenizer, hub::ModelTokenizer, hub::named_tokenizer,
    hub::stored_tokenizer;
using hub::FolderWeights, hub::HubExport, hub::HubWeights, hub::MergedWeights,
    hub::open_hub_tensors;

}  // namespace tessera::hub

export namespace tessera::runs {

// A run: its description, which a config has too, and all of it in one call.
using runs::BadRecords, runs::LossScaling, runs::NewTokens, runs::ObjectiveKind,
    runs::ReferenceKind, runs::Reproducible, runs::RowContent, runs::RowOrder, runs::SavedWeights,
    runs::SaveMode, runs::WhenBusy;
using runs::checked, runs::fully_shard, runs::train;
using runs::CheckpointConfig, runs::DataConfig, runs::DpoConfig, runs::ExpertsConfig,
    runs::GraphConfig, runs::JsonList, runs::JsonText, runs::LogConfig, runs::MeshConfig,
    runs::ModelConfig, runs::Names, runs::OptimizerConfig, runs::PluginsConfig, runs::RunSpec,
    runs::StyleConfig, runs::TraceConfig, runs::TrainConfig;

// Its parts: what is checked before the ranks start, and one rank's trainer.
using runs::Batch, runs::data_task_of, runs::DataReader, runs::Dataset, runs::DataTask,
    runs::language_model, runs::language_of, runs::LanguageTask, runs::ModelFacts,
    runs::open_data_task, runs::open_language_task;
using runs::check_run, runs::check_start, runs::Facts, runs::facts_of, runs::open_run,
    runs::OpenedRun, runs::Run, runs::StartPoint, runs::Trial;
using runs::Measures, runs::Objective, runs::StepMetrics, runs::Trainer;
using runs::RankTask, runs::Task, runs::task_of, runs::TaskFunctions;

}  // namespace tessera::runs

export namespace tessera::text {

// A trained model that reads and writes text.
using text::ask, text::log_likelihood, text::score_texts, text::Perplexity, text::PerplexityOptions,
    text::ScoredText, text::TextLikelihood, text::Question, text::QuestionOptions,
    text::read_questions, text::record_perplexity, text::text_perplexity;
using text::candidates, text::choose, text::likelihoods_of, text::SamplingOptions,
    text::TokenLikelihood, text::TokenLikelihoods, text::TextTokens;
using text::Chat, text::ChatFormat, text::ChatMessage, text::chat_template_of;
using text::Continuation, text::Decoding, text::Engine, text::EngineCounts, text::EngineOptions,
    text::EngineRequest, text::generate, text::generate_text, text::GeneratedText,
    text::GenerationOptions, text::prompt_tokens, text::ScoredPrompt, text::StreamedText,
    text::TextEnd, text::TextPart, text::TextReceiver;
using text::Copies, text::ModelFiles, text::ModelRanks, text::RankGrid, text::TextModel,
    text::with_text_model;

}  // namespace tessera::text

export namespace tessera::coded {
/// How the weights of a model that is not trained are kept.
using coded::CodeType, coded::WeightForm;
}  // namespace tessera::coded

export namespace tessera::evaluation {

// Tasks of lm-evaluation-harness.
using evaluation::StoredAnswers, evaluation::PreparedTask, evaluation::TaskChat,
    evaluation::TaskOptions, evaluation::TaskResult, evaluation::TaskScore;

}  // namespace tessera::evaluation
