#pragma once
// Attention whose sequences are split over the ranks of a mesh axis.
// The importing source must import tessera.placement, tessera.tensor and tessera.nn.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choice.hpp"

namespace context {

/// How the ranks share the work on a sequence.
enum class ExchangeKind {
  ring,        // keys and values move around the ranks
  all_to_all,  // heads are exchanged for tokens, and back
  automatic    // the one that waits less, of those that can be
};

/// What an automatic form became, with the reasons: each different one once.
struct Decisions {
  std::vector<std::string> texts;
  void add(const std::string& text);
};

/// The options of the style; see options_table.
struct Options {
  ExchangeKind form = ExchangeKind::automatic;
  bool balance = true;
  double gflops = 50;
};

struct Settings {
  Options options = {};
  std::shared_ptr<Decisions> decisions;  // of all modules of the style; not null
};

/// Takes the place of an InnerAttention: the same of q, k and v with Shard(1) along the axis, whose
/// result has it too.
class ContextAttention final : public tessera::nn::Module {
 public:
  ContextAttention(const std::shared_ptr<tessera::nn::InnerAttention>& whole,
                   const Settings& settings);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// The mesh axis. Errors (input): a ring of an attention that drops probabilities.
  void split_along(int axis);

 private:
  ExchangeKind form_of(const tessera::Tensors& inputs);
  /// Of two that are possible.
  ExchangeKind cheaper_form(const tessera::Tensors& inputs);
  tessera::Tensor by_heads(const tessera::Tensors& inputs);
  tessera::Tensor by_ring(const tessera::Tensors& inputs) const;

  tessera::nn::AttentionOptions options_;
  Settings settings_;
  tessera::nn::Child whole_;
  int axis_ = -1;
  struct Choice {
    AttentionSize size;
    tessera::Link link;
    ExchangeKind form = ExchangeKind::automatic;
  };
  Choice last_;  // so that calls of one size need not compare again
};

}  // namespace context
