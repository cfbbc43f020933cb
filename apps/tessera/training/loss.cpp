#include <cstdint>
#include <future>
#include <vector>

#include "config/config.hpp"
#include "llama_config.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;

#include "training/loss.hpp"
#include "training/setup.hpp"

namespace tessera::app {

Tensor batch_loss(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                  const Tensor& inputs, const Tensor& targets, std::int64_t tokens) {
  const Layout layout = plan.batch_layout();
  const Dims shape = {inputs.size(0) * plan.batch_parts(), inputs.size(1)};
  const Tensor logits = model(from_local(inputs, layout, shape));
  const Tensor sum = model.loss()({logits, from_local(targets, layout, shape)})[0];
  return ops::mul_scalar(sum, 1.0 / static_cast<double>(tokens));
}

std::vector<Communication> try_layouts(nn::LlamaForCausalLM& model,
                                       const parallel::ParallelPlan& plan, const Config& config) {
  const TrainConfig& train = config.train;
  model.set_activation_checkpointing(train.activation_checkpointing);
  // On a thread of its own: what it remembers of operators as rank 0, and the numbers that dropout
  // draws, go with it. The ranks that are forked afterwards would inherit them.
  return std::async(std::launch::async,
                    [&] {
                      const CommunicationReport report;
                      try {
                        const std::int64_t rows = batch_rows(train, plan.batch_parts()).micro;
                        const MicroBatchScope micro_batch(
                            random_position(),
                            {.batch = train.batch, .parts = plan.batch_parts(), .rows = rows});
                        const Tensor tokens = empty({rows, config.data.seq_len}, DType::i64, meta);
                        backward(batch_loss(model, plan, tokens, tokens,
                                            train.batch * config.data.seq_len));
                      } catch (const Error& error) {
                        throw plan.explained(error);
                      }
                      return report.entries();
                    })
      .get();
}

}  // namespace tessera::app
