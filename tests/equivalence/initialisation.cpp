// What must not depend on the layout although it is random: the first weights, dropout's masks and
// the order of the data.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "random_page.hpp"
#include "safetensors.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Folder;
using equivalence::layout;
using equivalence::Layout;
using equivalence::loss_difference;
using equivalence::reference;
using equivalence::same_bits;
using equivalence::usual_layouts;
using tessera::testing::small_model;

namespace {

/// Extents that few numbers of ranks divide; heads that two ranks can share.
std::string fresh_model(bool tied) {
  return small_model({.vocab = 101, .dim = 30, .kv_heads = 2, .head_dim = 6, .ffn_dim = 38}) +
         "tie_embeddings = " + std::string(tied ? "true" : "false") + "\n";
}

/// 100 windows: 9 steps of 12 rows pass the end of an epoch.
std::string training(const std::string& order) {
  return "[data]\ntokens = [\"" + reference("curves/tokens_short.npy") +
         "\"]\nseq_len = 24\nvalidation = 0.0\norder = \"" + order +
         "\"\n[train]\nsteps = 9\nbatch = 12\nseed = 7\n[optimizer]\nlr = 1e-3\n";
}

/// A rate so small that a step changes no bit of a weight.
const std::string kStandStill = "train.steps=1 optimizer.lr=1e-30 optimizer.weight_decay=0";

std::string first_weights(const Folder& folder, const std::string& config, const Layout& where,
                          const std::string& overrides = "") {
  static int runs = 0;
  const std::string name = "weights" + std::to_string(runs++);
  equivalence::train(folder, name, config, where, kStandStill + " " + overrides);
  return equivalence::export_checkpoint(folder, equivalence::checkpoint(folder, name, 1),
                                        name + "-export");
}

std::string bytes_of(const std::string& folder) {
  return equivalence::read_file(folder + "/model.safetensors");
}

}  // namespace

TEST_CASE("the first weights are the same bytes in every layout", "[initialisation]") {
  for (const bool tied : {false, true}) {
    const Folder folder;
    const std::string config = fresh_model(tied) + training("sequential");
    const std::string one = bytes_of(first_weights(folder, config, layout("one rank")));
    for (const Layout& where : usual_layouts()) {
      INFO(where.name << (tied ? ", tied" : ", untied"));
      CHECK((bytes_of(first_weights(folder, config, where)) == one));
    }
    CHECK((bytes_of(first_weights(folder, config, layout("FSDP 3"), "train.seed=8")) != one));
  }
}

TEST_CASE("the first weights are the numbers of the page on random numbers", "[initialisation]") {
  for (const bool tied : {false, true}) {
    const Folder folder;
    const auto tensors = read_safetensors(
        first_weights(folder, fresh_model(tied) + training("sequential"), layout("FSDP 2 x TP 2")) +
        "/model.safetensors");
    std::vector<std::string> order = {"model.embed_tokens"};
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      for (const char* name :
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
        order.push_back(layer + name);
      }
    }
    if (!tied) {
      order.emplace_back("lm_head");
    }
    std::uint64_t offset = 0;
    for (const std::string& name : order) {
      INFO(name << (tied ? ", tied" : ", untied"));
      const auto& bytes = tensors.at(name + ".weight").bytes;
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      std::size_t differ = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        differ +=
            values[i] == std::fma(0.02F, random_page::normal(7, "init", offset + i), 0.0F) ? 0 : 1;
      }
      CHECK(differ == 0);
      offset += (values.size() + 3) / 4 * 4;
    }
  }
}

TEST_CASE("the first weights are normal with a standard deviation of 0.02, those of norms are one",
          "[initialisation]") {
  const Folder folder;
  const auto tensors = read_safetensors(
      first_weights(folder, fresh_model(false) + training("sequential"), layout("FSDP 2 x TP 2")) +
      "/model.safetensors");
  CHECK(tensors.size() == 21);
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    REQUIRE(tensor.dtype == "F32");
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    if (tensor.shape.size() == 1) {
      CHECK(std::all_of(values.begin(), values.end(), [](float value) { return value == 1.0F; }));
      continue;
    }
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const auto count = static_cast<double>(values.size());
    // Five standard errors of a mean and of a deviation.
    CHECK(std::abs(sum / count) < 5 * 0.02 / std::sqrt(count));
    CHECK(std::abs(std::sqrt(squares / count) - 0.02) < 5 * 0.02 / std::sqrt(2 * count));
  }
}

TEST_CASE("dropout's masks are those of one rank in every layout", "[initialisation]") {
  for (const bool tied : {false, true}) {
    const Folder folder;
    const std::string config = fresh_model(tied) + training("sequential");
    const std::string dropout = "model.dropout=0.25 train.steps=3";
    const auto one = equivalence::train(folder, "one", config, layout("one rank"), dropout);
    for (const Layout& where : usual_layouts()) {
      INFO(where.name << (tied ? ", tied" : ", untied"));
      CHECK(loss_difference(equivalence::train(folder, "run", config, where, dropout), one) <=
            1e-6);
    }
    // The measure tells masks apart.
    CHECK(loss_difference(
              equivalence::train(folder, "none", config, layout("one rank"), "train.steps=3"),
              one) > 1e-5);
  }
}

TEST_CASE("activation checkpointing draws dropout's masks again", "[initialisation]") {
  const Folder folder;
  const std::string config = fresh_model(false) + training("sequential");
  for (const char* name : {"one rank", "FSDP 3", "TP 2 with sequence parallel", "FSDP 2 x TP 2"}) {
    INFO(name);
    const auto kept =
        equivalence::train(folder, "kept", config, layout(name), "model.dropout=0.25");
    CHECK(same_bits(equivalence::train(folder, "again", config, layout(name),
                                       "model.dropout=0.25 train.activation_checkpointing=true"),
                    kept));
  }
}

TEST_CASE("a shuffled order is the same in every layout, over epochs", "[initialisation]") {
  const Folder folder;
  // Windows must be told apart by their losses, and weights must not depend on the seed.
  const std::string config =
      "[model]\nfrom = \"" + reference("curves/untied_matrices") + "\"\n" + training("shuffled");
  const auto one = equivalence::train(folder, "one", config, layout("one rank"));
  for (const Layout& where : usual_layouts()) {
    INFO(where.name);
    CHECK(loss_difference(equivalence::train(folder, "run", config, where), one) <= 2e-6);
    CHECK(loss_difference(
              equivalence::train(folder, "run", config, where,
                                 "train.micro_batch=" + std::to_string(where.micro_batch)),
              one) <= 2e-6);
  }
  for (const char* other : {"train.seed=8", "data.order=sequential"}) {
    INFO(other);
    CHECK(loss_difference(equivalence::train(folder, "other", config, layout("one rank"), other),
                          one) > 1e-4);
  }
}
