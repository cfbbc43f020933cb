// Models: modules, layers, families, tokenizers, and the rows that are trained on.
export module tessera:models;

import tessera.data;
import tessera.encoders;
import tessera.models;
import tessera.nn;
import tessera.tokenize;

export namespace tessera::nn {

// Modules, their parameters and hooks.
using nn::add_conversion, nn::ForwardHook, nn::ForwardPreHook, nn::HookHandle;
using nn::all_buffers, nn::all_modules, nn::all_parameters, nn::matches, nn::matching_parameters,
    nn::named_parameters, nn::NamedTensor, nn::parameter_count, nn::values_by_name;
using nn::Buffer, nn::BufferPointer, nn::Child, nn::Initialization, nn::LayerSplit, nn::Module,
    nn::Parameter, nn::ParameterPointer;
using nn::EvaluationScope, nn::freeze, nn::initialize, nn::materialize, nn::replace_modules,
    nn::Replacement, nn::update_parameters;
// What a layer of one's own attaches to itself.
using nn::LayerSplits, nn::split_of, nn::splits_of, nn::StepEnd;

// Layers.
using nn::Activation, nn::FeedForwardOptions, nn::GatedMLP, nn::PlainMLP;
using nn::Attention, nn::AttentionCache, nn::AttentionLayer, nn::AttentionOptions, nn::HeadNorm,
    nn::KeyValueCache, nn::LatentAttention, nn::LatentOptions, nn::PositionEmbedding,
    nn::RotaryOptions, nn::RowDocuments, nn::WavelengthFactors;
using nn::balance_experts, nn::BalanceOptions, nn::Experts, nn::MixtureOptions, nn::RouterScore,
    nn::SparseMixture;
using nn::CausalConvolution, nn::GatedConvolution, nn::OutputGate, nn::Recurrence,
    nn::RecurrentLayer, nn::RecurrentOptions, nn::RecurrentRule, nn::RecurrentState;
using nn::Conv2d, nn::CrossEntropyLoss, nn::Dropout, nn::Embedding, nn::Gelu, nn::HeadNorms,
    nn::LayerNorm, nn::Linear, nn::make_norm, nn::NormOptions, nn::RMSNorm;
using nn::linear_cross_entropy, nn::LinearCrossEntropy;

// Language models.
using nn::Decoder, nn::DecoderBlock, nn::DecoderLM, nn::DecoderShape, nn::LanguageModel,
    nn::LayerKind, nn::WidthRule;

}  // namespace tessera::nn

export namespace tessera::models {

// Families of models: a model from its values, Hugging Face's config and folder.
using models::model_families, models::model_family, models::ModelFamily, models::ModelSizes,
    models::ModelValue, models::ModelValues;

}  // namespace tessera::models

export namespace tessera::tokenize {

// Tokenizers, opened from files or made.
using tokenize::encode_all, tokenize::EncodeOptions, tokenize::Encoding, tokenize::make_tokenizer,
    tokenize::open_tokenizer, tokenize::OpenedTokenizer, tokenize::SpecialTokens,
    tokenize::StreamDecoder, tokenize::Tokenizer, tokenize::TokenId;

}  // namespace tessera::tokenize

export namespace tessera::data {

// Documents and conversations, and the rows of steps made of them.
using data::ChatTemplate, data::DocumentOptions, data::Documents, data::EncodedText, data::Example,
    data::ExampleMaker, data::ExampleOptions, data::Preference, data::RecordForm, data::RecordKind,
    data::Tokens, data::SpecialText, data::TextEncoder, data::TokenSource, data::TooLong,
    data::TrainOn;
using data::DocumentRows, data::ignored_target, data::Mixture, data::PackedRows, data::Packing,
    data::Permutation, data::PreferenceRows, data::RecordPlace, data::RowRecord, data::RowSource,
    data::TokenRange, data::WeightedRows, data::Windows;
// Images of files.
using data::decode_image, data::Image, data::ImageFilter, data::ImageForm, data::ImageRows,
    data::LabelledImages, data::resized;

}  // namespace tessera::data

export namespace tessera::encoders {

// Encoders of texts and images, and their folders.
using encoders::encoder_from_folder, encoders::EncoderConfig, encoders::EncoderFolder,
    encoders::EncoderHead, encoders::EncoderModel, encoders::EncoderShape,
    encoders::image_processor_of, encoders::ImageProcessor, encoders::Pooling, encoders::token_rows,
    encoders::TokenRows, encoders::write_encoder_folder;

}  // namespace tessera::encoders
