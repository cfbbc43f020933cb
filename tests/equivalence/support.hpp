// What the equivalence tests share: runs of the program `tessera` in a folder of their own, the
// layouts that must all give the same numbers, and the readers of what a run leaves behind.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "folder.hpp"

namespace equivalence {

using tessera::testing::Folder;
using tessera::testing::read_file;

/// A path under tests/reference/data.
std::string reference(const std::string& path);

struct Result {
  int code = -1;
  std::string out;
  std::string error;
};

/// Runs `tessera arguments` through a shell.
Result run(const std::string& arguments);

/// Runs it and requires that it succeeds.
std::string succeed(const std::string& arguments);

/// How a run is spread over ranks.
struct Layout {
  std::string name;
  std::string config;        // [mesh] and [[parallel]]
  std::int64_t micro_batch;  // divides a rank's rows of a batch of 12, at least two times
};

/// One rank first; then FSDP, Replicate, tensor and sequence parallel and their products.
const std::vector<Layout>& layouts();
/// Of each kind of them one, for what is compared in few layouts by default: all with
/// TESSERA_ALL_LAYOUTS (the test equivalence_layouts).
const std::vector<Layout>& usual_layouts();
const Layout& layout(std::string_view name);

struct Step {
  std::int64_t step;
  double loss;
  double grad_norm;
  double lr;
};

/// The lines of a metrics file; their steps must be 1, 2, 3...
std::vector<Step> read_metrics(const std::string& path);

/// Trains in `folder` by the config `text` on `where`, one thread a rank; the run's own files are
/// NAME.toml, NAME.jsonl and NAME/step-... (further `overrides` are KEY=VALUE).
std::vector<Step> train(const Folder& folder, const std::string& name, const std::string& text,
                        const Layout& where, const std::string& overrides = "");

/// A checkpoint that the run NAME saved.
std::string checkpoint(const Folder& folder, const std::string& name, std::int64_t step);

/// Exports a checkpoint into a fresh folder NAME of `folder` and returns that folder's path.
std::string export_checkpoint(const Folder& folder, const std::string& checkpoint,
                              const std::string& name);

/// Ready tokens as a NumPy file of one dimension, int32.
std::string write_tokens(const Folder& folder, const std::string& name,
                         const std::vector<std::int32_t>& tokens);

/// |a - b| as a share of |b|.
double difference(double a, double b);

/// The largest difference of the losses; infinity where the numbers of steps differ.
double loss_difference(const std::vector<Step>& a, const std::vector<Step>& b);

/// Whether losses, gradient norms and learning rates are the same bits.
bool same_bits(const std::vector<Step>& a, const std::vector<Step>& b);

}  // namespace equivalence
