// GPT-2, a family of models that is a plugin, against transformers: curves in every layout, folders
// in and out, generation.
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "curve.hpp"
#include "support.hpp"

using equivalence::Curve;
using equivalence::Folder;
using equivalence::follows;
using equivalence::Layout;
using equivalence::layouts;
using equivalence::reference;

namespace {

/// The same layout with the names of GPT-2's modules.
Layout of_gpt2(Layout where) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"model.layers.", "transformer.h."},
      {"self_attn", "attn"},
      {"{gate,up}_proj", "c_fc"},
      {"down_proj", "c_proj"}};
  for (const auto& [llama, gpt2] : names) {
    for (std::size_t at = where.config.find(llama); at != std::string::npos;
         at = where.config.find(llama, at + gpt2.size())) {
      where.config.replace(at, llama.size(), gpt2);
    }
  }
  return where;
}

void follows_everywhere(const std::string& name) {
  const Curve curve("gpt2", name);
  int tried = 0;
  for (const Layout& where : layouts()) {
    if (where.name.find("sequence") == std::string::npos) {
      follows(curve, of_gpt2(where), "train.micro_batch=" + std::to_string(where.micro_batch));
      ++tried;
    }
  }
  CHECK(tried == 8);
  follows(curve, of_gpt2(equivalence::layout("FSDP 2 x TP 2")),
          "train.activation_checkpointing=true graph.capture=true");
}

}  // namespace

TEST_CASE("GPT-2 with tied embeddings follows PyTorch's curve in every layout", "[gpt2]") {
  follows_everywhere("tied");
}

TEST_CASE("GPT-2 without tied embeddings follows PyTorch's curve in every layout", "[gpt2]") {
  follows_everywhere("untied");
}
