// The values of a config.json, read one by one; everything wrong is collected.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera::app {

/// Each function gives a value that can be used where the file's is wrong, and notes the problem.
/// A key that is null is treated as absent.
class LlamaValues {
 public:
  /// `name` begins the error. The object must outlive this.
  LlamaValues(const nlohmann::json& json, std::string name);

  /// A size from 1 to `limit` that must be there.
  std::int64_t size(const char* key, std::int64_t limit);
  /// The same, `fallback` where it is absent.
  std::int64_t size(const char* key, std::int64_t limit, std::int64_t fallback);
  double positive(const char* key, double fallback);
  bool flag(const char* key);
  /// Token ids below `vocab`: none for null, one, or a list; `fallback` where the key is absent
  /// (none if that is not below `vocab` either).
  std::vector<std::int64_t> tokens(const char* key, std::int64_t vocab, std::int64_t fallback);
  /// The type of the weights by its name in PyTorch, from dtype or torch_dtype (older writers);
  /// "" where neither is there.
  std::string dtype();
  /// The base of the rotary embedding, from the top, rope_scaling (older writers) or
  /// rope_parameters.
  double rope_theta();

  bool has(const char* key) const;
  void problem(std::string text);
  /// Error (input) that lists the problems.
  void throw_if_any() const;

 private:
  double positive_in(const nlohmann::json& object, const char* key, double fallback);
  void check_rope(const char* key, const nlohmann::json& rope);

  const nlohmann::json& json_;
  std::string name_;
  std::vector<std::string> problems_;
};

}  // namespace tessera::app
