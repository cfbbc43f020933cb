module tessera.text:model_call;

import tessera.base;
import :model_ranks;

// What ranks are asked to compute.

namespace tessera::text {

/// A call as the first rank sends it.
struct ModelRanks::Call {
  enum class Kind : std::int64_t {
    dismiss,
    logits,
    batch,
    first_batch,  // which tells what batches can ask for
    loss,
    likelihoods,
    add_adapter,
    drop_adapter,
  };

  Kind kind = Kind::dismiss;
  std::int64_t rows = 0;
  std::int64_t likeliest = 0;
  bool anew = false;
  std::vector<std::int64_t> values = {};  // tokens; of a loss, then the targets; see message_of()
};

}  // namespace tessera::text
