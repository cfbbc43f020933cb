module;
#include <nlohmann/json_fwd.hpp>
module tessera.app.bench:bench_rows;

import tessera.placement;
import tessera.checkpoint;
import tessera.app.base;
import tessera.nn;
import tessera.text;
import :run_bench;

// The tables of `tessera bench` that have a source of their own.

namespace tessera::app {

/// A share of a ceiling that was measured in the same run; null where it is not reliable (see
/// reliable_share).
nlohmann::ordered_json share_cell(double share);

/// Kernels on plain tensors, at one thread and at all: {name, threads, us, gb_per_second or gflops,
/// bound, share_of_bound}.
nlohmann::ordered_json bench_kernels(const BenchArguments& arguments);

/// Operators of a training step on a device, in bf16 and f32: {name, us, gb_per_second and its
/// share of what the driver's own copy moves, or tflops, deviation}; and the costs of small work:
/// {name, us}. The deviation
/// is the largest |x - y| / (1 + |y|) from the CPU's results, for operands of at most 2^16
/// elements. Errors: the device does not exist, or lacks a kernel.
nlohmann::ordered_json bench_device(const BenchArguments& arguments);

/// The planning of a checkpoint of 70 B parameters on 512 ranks: {name, save_seconds, load_seconds,
/// peak_memory_mib, shares of what they may be}. It needs no disk for values.
nlohmann::ordered_json bench_checkpoint(const BenchArguments& arguments);

/// What ranks do besides computing, for 64, 256, ... ranks, at most arguments.ranks: {name, ranks,
/// seconds, rank_ms, memory_mib}. It needs no disk for values, but for the headers of files.
nlohmann::ordered_json bench_scale(const BenchArguments& arguments);

/// `groups`: query heads for each head of keys.
struct LlamaSizes {
  std::int64_t dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  int layers = 0;
  std::int64_t groups = 1;
};
/// The parameters of a Llama and their state of AdamW, by the names that a checkpoint has for them.
std::map<std::string, SimulatedTensor> llama_state(const LlamaSizes& sizes, const Layout& vectors,
                                                   const Layout& matrices);
/// What a rank does of a load but for the values: reads the index, and finds all its parts.
void find_parts(const std::string& checkpoint, const std::map<std::string, SimulatedTensor>& wanted,
                int rank);

/// Encoding and decoding of a text, at one thread and at all: {name, threads, mb_per_second,
/// ceiling_mb_per_second, share_of_ceiling}. The ceiling of a tokenizer with words is one pass
/// that finds the text's words and looks each up in a table; of bytes and of decoding, one that
/// copies the text as ids; at as many threads.
nlohmann::ordered_json bench_tokenizer(const BenchArguments& arguments);

/// Greedy continuation of one sequence and of eight, at one thread and at all: {name, threads,
/// tokens_per_second, bound_tokens_per_second, share_of_bound}. The bound is the time in which as
/// many threads read all weights once, for all sequences together.
nlohmann::ordered_json bench_generate(const BenchArguments& arguments);

/// 1, 8 and 32 clients of one engine that ask at the same time, each with a prompt of 32 tokens for
/// 32 more, with all threads: {name, tokens_per_second, processor_ms_per_token,
/// first_token_seconds and that of the client who waits longest, weights_read_seconds}. HTTP is not
/// measured.
nlohmann::ordered_json bench_serve(const BenchArguments& arguments);

/// The model of arguments.model, or a Llama of 100 M parameters with random weights.
class BenchModel {
 public:
  explicit BenchModel(const BenchArguments& arguments);
  text::ModelRanks& ranks();
  std::int64_t vocab() const;
  std::int64_t bytes();  // of its weights
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::optional<text::TextModel> named_;
  std::shared_ptr<nn::LanguageModel> random_;
  std::optional<text::ModelRanks> alone_;
};
/// The best time in which threads read as many bytes as the weights have.
double reading_seconds(std::int64_t weights, int threads);

}  // namespace tessera::app
