module tessera.hub:gguf_names;

import tessera.base;

// Names and numbers that the reader and the writer of a file's fields share.
namespace tessera::hub {

inline constexpr std::string_view rope_factors = "rope_freqs.weight";
inline constexpr std::string_view long_rows = "rope_factors_long.weight";
inline constexpr std::string_view short_rows = "rope_factors_short.weight";
/// The beginning of keys that are parts of rope_scaling.
inline constexpr std::string_view rope_part = "rope_scaling.";
/// The key of the base of layers with a window, where rope_parameters tell them apart.
inline constexpr const char* local_theta = "rope_parameters.sliding_attention.rope_theta";
inline constexpr const char* local_theta_field = "rope.freq_base_swa";
inline constexpr const char* vocab_field = "vocab_size";
inline constexpr const char* window_field = "attention.sliding_window";
inline constexpr const char* pattern_field = "attention.sliding_window_pattern";
/// How many last layers use keys and values of others.
inline constexpr const char* shared_field = "attention.shared_kv_layers";
inline constexpr const char* window_layer = "sliding_attention";
inline constexpr const char* full_layer = "full_attention";
/// How many layers, after the others, predict tokens after the next one.
inline constexpr const char* further_field = "nextn_predict_layers";

/// The factor of a pair's wavelength that is not rotated.
inline constexpr double pair_factor = 1e30;

// The bounds of yarn where nothing is said.
inline constexpr double yarn_slow = 1;
inline constexpr double yarn_fast = 32;
// What the logarithm of the scaling is multiplied by.
inline constexpr double yarn_growth = 0.1;

/// llama3's factors of the wavelengths, in float32 as ggml's converter computes them.
std::vector<float> llama3_factors(std::int64_t width, double theta, double factor, double low,
                                  double high, double original);

/// What a field is: a key, or a sum or a product of keys.
struct GgufTerm {
  bool product = false;
  std::vector<std::string> keys;
};
/// All terms that a field is equal to, "a + b" or "a * b = c".
std::vector<GgufTerm> terms_of(const std::string& text);

/// A field that says for how many layers, each so many-th, something holds, and such a list.
std::vector<std::int64_t> every_so_many(std::int64_t period, std::int64_t layers);

/// How many pairs of a head are rotated by each of three positions in turns, and a 0.
std::vector<std::int64_t> rope_sections(std::int64_t pairs);
inline constexpr const char* sections_field = "rope.dimension_sections";
inline constexpr const char* log_field = "rope.scaling.yarn_log_multiplier";

}  // namespace tessera::hub
