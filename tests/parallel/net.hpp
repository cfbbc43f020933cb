// A small model for the tests of FSDP, and the plain model that it must agree with. Include it
// after the imports of tessera's modules.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace parallel_test {

struct NetOptions {
  bool tied = false;           // the head's weight is the embedding's
  bool checkpointing = false;  // each block computes its activations again in backward
  double dropout = 0;
  std::vector<std::string> frozen = {};  // what the names of frozen parameters begin with
};

/// x + down(relu(up(drop(norm(x)))))
class NetBlock final : public tessera::nn::Module {
 public:
  explicit NetBlock(double dropout);
  std::string_view kind() const override { return "NetBlock"; }
  tessera::Tensors forward(const tessera::Tensors& inputs) override;

 private:
  std::shared_ptr<tessera::nn::RMSNorm> norm_;
  std::shared_ptr<tessera::nn::Dropout> drop_;
  std::shared_ptr<tessera::nn::Linear> up_, down_;
};

/// Tokens [B, T] -> embedding -> two blocks -> head, all f64.
class Net final : public tessera::nn::Module {
 public:
  static constexpr std::int64_t vocabulary = 11;
  explicit Net(const NetOptions& options = {});
  std::string_view kind() const override { return "Net"; }
  tessera::Tensors forward(const tessera::Tensors& inputs) override;

 private:
  bool checkpointing_;
  std::shared_ptr<tessera::nn::Embedding> embed_;
  std::vector<std::shared_ptr<NetBlock>> blocks_;
  std::shared_ptr<tessera::nn::Linear> head_;
};

/// `rows` rows of three tokens, others for each `seed`.
tessera::Tensor net_tokens(std::int64_t rows, int seed);

/// Whole values or gradients by name; parameters without a gradient are missing.
using Named = std::map<std::string, std::vector<double>>;
Named values_of(tessera::nn::Module& model);
Named gradients_of(tessera::nn::Module& model);
/// Writes whole values into a model, in whatever layout.
void write_values(tessera::nn::Module& model, const Named& values);
/// Drops all gradients.
void clear_gradients(tessera::nn::Module& model);
/// Every parameter becomes itself * factor + offset.
void change_values(tessera::nn::Module& model, double factor, double offset);

/// The largest relative difference; infinity where a name is in one of them only.
double difference(const Named& a, const Named& b);

/// A Net (or another model) under a plan on this rank, with its memory.
struct Planned {
  /// On the meta device it has no values.
  Planned(std::shared_ptr<tessera::nn::Module> net, const tessera::DeviceMesh& mesh,
          const std::vector<tessera::parallel::StyleEntry>& entries,
          tessera::Device device = tessera::cpu);

  /// The loss (a scalar, Partial) of these tokens, of which every rank has a copy.
  tessera::Tensor loss(const tessera::Tensor& tokens);

  std::shared_ptr<tessera::nn::Module> model;
  tessera::parallel::ParallelPlan plan;
};

/// The error of a plan with these entries for a model (without one: a Net) on a mesh of ranks that
/// need not exist; "no error" when it has none.
std::string refusal(const std::vector<tessera::parallel::StyleEntry>& entries,
                    const std::shared_ptr<tessera::nn::Module>& model = nullptr, int ranks = 2);

/// The plain model, initialised as a planned one is.
std::shared_ptr<tessera::nn::Module> plain(std::shared_ptr<tessera::nn::Module> net);
tessera::Tensor plain_loss(tessera::nn::Module& model, const tessera::Tensor& tokens);

/// FSDP along `axis`. A backward without sync keeps whole gradients; with the default option it
/// reduces them, as every backward with sync does.
tessera::parallel::StyleEntry fsdp(std::vector<std::string> on, bool reshard = true,
                                   const std::string& axis = "shard");

/// A Net that is sharded by call, with its memory.
struct Sharded {
  Sharded(const tessera::DeviceMesh& mesh, const tessera::parallel::FullyShardOptions& options,
          const NetOptions& net = {});
  /// Of four rows of tokens, others for each `seed`.
  tessera::Tensor loss(int seed);

  Net model;
  tessera::parallel::FullySharded handle;
};
/// A group for each block, and one of everything else.
tessera::parallel::FullyShardOptions in_blocks();
tessera::nn::Module& block_of(tessera::nn::Module& net, std::size_t i);
/// Whether the block's weights are whole at the moment.
bool is_whole(tessera::nn::Module& net, std::size_t i);
/// What the head computes with: whole, or nothing while it is sharded.
const tessera::Tensor& computed_head(tessera::nn::Module& net);

/// A style of the program that sets this extension for the parameters of the modules.
tessera::parallel::StyleEntry extend(
    std::vector<std::string> on,
    const std::function<std::shared_ptr<tessera::parallel::ShardExtension>()>& make);
/// Values are gathered in two parts that are them exactly: their first 8 bits, in bf16, and the
/// rest.
std::shared_ptr<tessera::parallel::ShardExtension> in_two_parts();

}  // namespace parallel_test
