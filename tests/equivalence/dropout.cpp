// Dropout with accumulation: the masks belong to the rows of the whole step, so every layout, every
// micro-batch, recomputation and a resumed run give one rank's losses.
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Folder;
using equivalence::layout;
using equivalence::Layout;
using equivalence::loss_difference;
using equivalence::reference;
using equivalence::Step;
using tessera::testing::small_model;

namespace {

const char* const kLayouts[] = {"one rank",
                                "FSDP 2",
                                "Replicate 2",
                                "TP 2",
                                "TP 2 with sequence parallel",
                                "Replicate 2 x FSDP 2",
                                "FSDP 2 x TP 2 with sequence and loss parallel"};

std::string config() {
  return small_model({.vocab = 101,
                      .dim = 30,
                      .kv_heads = 2,
                      .head_dim = 6,
                      .ffn_dim = 38,
                      .dropout = 0.25}) +
         "[data]\ntokens = [\"" + reference("curves/tokens_short.npy") +
         "\"]\nseq_len = 24\nvalidation = 0.0\n[train]\nsteps = 4\nbatch = 12\nseed = 7\n"
         "[optimizer]\nlr = 1e-3\n[checkpoint]\nevery = 2\n";
}

std::string micro_batch(std::int64_t rows) { return "train.micro_batch=" + std::to_string(rows); }

}  // namespace

TEST_CASE("accumulation draws dropout's masks of the whole step in every layout", "[dropout]") {
  const Folder folder;
  const std::vector<Step> whole = equivalence::train(folder, "whole", config(), layout("one rank"));
  for (const char* name : kLayouts) {
    const Layout& where = layout(name);
    INFO(name);
    CHECK(loss_difference(equivalence::train(folder, "accumulated", config(), where,
                                             micro_batch(where.micro_batch)),
                          whole) <= 2e-6);
    CHECK(
        loss_difference(equivalence::train(folder, "again", config(), where,
                                           micro_batch(1) + " train.activation_checkpointing=true"),
                        whole) <= 2e-6);
  }
  // The measure tells masks apart.
  CHECK(loss_difference(
            equivalence::train(folder, "other", config(), layout("one rank"), "model.dropout=0.2"),
            whole) > 1e-4);
}

TEST_CASE("a run with dropout resumes in another layout with other micro-batches", "[dropout]") {
  const Folder folder;
  const std::vector<Step> whole =
      equivalence::train(folder, "whole", config(), layout("one rank"), micro_batch(4));
  const std::string from =
      " checkpoint.resume='" + equivalence::checkpoint(folder, "whole", 2) + "'";
  for (const char* name : kLayouts) {
    INFO(name);
    const Layout& where = layout(name);
    CHECK(loss_difference(equivalence::train(folder, "rest", config(), where,
                                             micro_batch(where.micro_batch) + from),
                          {whole.begin() + 2, whole.end()}) <= 2e-5);
  }
}

TEST_CASE("validation leaves dropout and its streams as they were", "[dropout]") {
  const Folder folder;
  const std::string text = config();
  const auto with = [&](const std::string& overrides) {
    return equivalence::train(folder, "run", text, layout("FSDP 2"),
                              "data.validation=0.3 " + overrides);
  };
  CHECK(equivalence::same_bits(with("data.validate_every=1"), with("")));
}
