export module tessera.hub:gguf;

import tessera.base;
import tessera.checkpoint;
import :model_shape;

// A GGUF file as a model folder in Hugging Face's format, and the other way round. ggml's programs
// have other names, rotate other pairs of a head of Llama, and store Gemma's norms with their 1.

export namespace tessera::hub {

/// The GGUF file that a path names: itself, or model.gguf in a folder that has no config.json.
/// Empty: the path names a model folder.
std::string gguf_file(const std::string& path);

/// config.json of the model in a GGUF file, in Hugging Face's words. Error (input): its
/// architecture, a field or a tensor is not supported; a field is missing.
std::string gguf_config(const TensorSource& file);

/// The tensors of a model folder or a GGUF file (see gguf_file) by the names and in the form of
/// Hugging Face's format. Error (input): it is damaged, or has a tensor that is not supported.
OpenedTensors open_hub_tensors(const std::string& path);

/// The same model in the words that GGUF files have: its reading gives these values.
ModelShape gguf_shape(const ModelShape& shape);

/// What is written into a GGUF file.
struct GgufContent {
  std::string config;  // config.json, of gguf_shape()
  // Of tensors with more than one dim: F32, F16, BF16, Q8_0, Q4_0, or Q4_K_M: Q4_K, and Q6_K where
  // llama-quantize gives more bits.
  std::string type = "F32";
  std::string tokenizer = {};  // fields of the tokenizer: a JSON object; empty: none
  std::string name = {};       // of the model
};

/// A model in Hugging Face's format as the content of a GGUF file, for the format "gguf". `folder`
/// must outlive it. Error (input): GGUF has no architecture that computes this model.
std::unique_ptr<TensorSource> gguf_tensors(const TensorSource& folder, const GgufContent& content);

}  // namespace tessera::hub
