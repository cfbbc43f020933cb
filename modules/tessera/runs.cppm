// Whole runs, as `tessera train` does them; models as others store them; text.
export module tessera:runs;

import tessera.hub;
import tessera.run;
import tessera.text;

export namespace tessera::hub {

// Models of transformers, ggml and PEFT: config, weights, tokenizer, low-rank updates.
using hub::check_peft, hub::load_model_weights, hub::load_peft, hub::make_model, hub::Updates,
    hub::updates_of;
using hub::family_of, hub::gguf_file, hub::hub_config, hub::ModelShape, hub::parse_hub_config,
    hub::read_model_folder, hub::sizes_of, hub::stored_model;
using hub::folder_tokenizer, hub::model_tokenizer, hub::ModelTokenizer, hub::named_tokenizer,
    hub::stored_tokenizer;
using hub::FolderWeights, hub::HubExport, hub::HubWeights, hub::MergedWeights,
    hub::open_hub_tensors;

}  // namespace tessera::hub

export namespace tessera::run {

// A run: its description, which a config has too, and all of it in one call.
using run::checked, run::train;
using run::CheckpointConfig, run::DataConfig, run::DpoConfig, run::ExpertsConfig, run::GraphConfig,
    run::JsonList, run::JsonText, run::LogConfig, run::MeshConfig, run::ModelConfig, run::Names,
    run::OptimizerConfig, run::PluginsConfig, run::RunSpec, run::StyleConfig, run::TraceConfig,
    run::TrainConfig;

// Its parts: what is checked before the ranks start, and one rank's trainer.
using run::Batch, run::Dataset, run::open_run_data, run::RunData;
using run::check_run, run::check_start, run::Facts, run::facts_of, run::open_run, run::OpenedRun,
    run::Run, run::StartPoint, run::Trial;
using run::Measures, run::Objective, run::StepMetrics, run::Trainer;

}  // namespace tessera::run

export namespace tessera::text {

// A trained model that reads and writes text.
using text::ask, text::log_likelihood, text::Perplexity, text::PerplexityOptions, text::Question,
    text::QuestionOptions, text::read_questions, text::record_perplexity, text::text_perplexity;
using text::candidates, text::choose, text::SamplingOptions;
using text::Chat, text::ChatFormat, text::ChatMessage, text::chat_template_of;
using text::Copies, text::ModelRanks, text::RankGrid, text::TextModel, text::with_text_model;
using text::Decoding, text::generate, text::generate_text, text::GeneratedText,
    text::GenerationOptions, text::prompt_tokens, text::StreamedText, text::TextEnd,
    text::TextReceiver;

}  // namespace tessera::text
