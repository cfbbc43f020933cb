// The sizes of a small decoder, as a config's section and as the library's structure. The header
// has no type of a module: include it before the imports.
#pragma once
#include <cstdint>
#include <string>

namespace tessera::testing {

/// Sizes that are 0 are left out: the family determines them.
struct SmallModel {
  std::string family = {};  // empty: llama
  std::int64_t vocab = 0;
  std::int64_t dim = 32;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_dim = 0;
  double dropout = 0;
};

/// The section [model] of a config; further lines of it may follow.
std::string small_model(const SmallModel& sizes = {});

}  // namespace tessera::testing
