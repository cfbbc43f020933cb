module tessera.hub:gguf_names;

import tessera.base;

// Names and numbers that the reader and the writer of a file's fields share.
namespace tessera::hub {

inline constexpr std::string_view rope_factors = "rope_freqs.weight";
inline constexpr std::string_view long_rows = "rope_factors_long.weight";
inline constexpr std::string_view short_rows = "rope_factors_short.weight";
/// The beginning of keys of GgufForm::config that are parts of rope_scaling.
inline constexpr std::string_view rope_part = "rope_scaling.";
/// The key of the base of layers with a window, where rope_parameters tell them apart.
inline constexpr const char* local_theta = "rope_parameters.sliding_attention.rope_theta";
inline constexpr const char* local_theta_field = "rope.freq_base_swa";
inline constexpr const char* window_field = "attention.sliding_window";
inline constexpr const char* pattern_field = "attention.sliding_window_pattern";
inline constexpr const char* window_layer = "sliding_attention";
inline constexpr const char* full_layer = "full_attention";
/// How many layers, after the others, predict tokens after the next one.
inline constexpr const char* further_field = "nextn_predict_layers";

// The bounds of yarn where nothing is said.
inline constexpr double yarn_slow = 1;
inline constexpr double yarn_fast = 32;
// Files of latent attention have a tenth of what the logarithm of the scaling is multiplied by.
inline constexpr double log_share = 0.1;

/// llama3's factors of the wavelengths, in float32 as ggml's converter computes them.
std::vector<float> llama3_factors(std::int64_t width, double theta, double factor, double low,
                                  double high, double original);

/// The keys of a sum, "a + b".
std::vector<std::string> summands(const std::string& sum);

}  // namespace tessera::hub
