// Twenty training steps against PyTorch's stored ones (tests/reference), in every layout.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "curve.hpp"
#include "support.hpp"

using equivalence::Curve;
using equivalence::difference;
using equivalence::Folder;
using equivalence::follows;
using equivalence::Layout;
using equivalence::layout;
using equivalence::layouts;
using equivalence::reference;
using equivalence::Step;
using equivalence::usual_layouts;

namespace {

const std::vector<std::string> kVariants = {"untied_nodecay", "untied_matrices", "untied_all",
                                            "tied_nodecay",   "tied_matrices",   "tied_all",
                                            "two_epochs",     "warmup_cosine"};

void follows_everywhere(const std::string& name, const std::vector<Layout>& all = layouts()) {
  const Curve curve("curves", name);
  for (const Layout& where : all) {
    follows(curve, where, "");
    follows(curve, where, "train.micro_batch=" + std::to_string(where.micro_batch));
  }
  for (const char* where : {"one rank", "FSDP 2 x TP 2"}) {
    follows(curve, layout(where), "train.activation_checkpointing=true");
  }
}

}  // namespace

TEST_CASE("a tied model follows PyTorch's curve in every layout", "[curves]") {
  follows_everywhere("tied_matrices");
}

TEST_CASE("an untied model follows PyTorch's curve in every layout", "[curves]") {
  follows_everywhere("untied_matrices", usual_layouts());
}

TEST_CASE("every variant follows PyTorch's curve on one rank and on a 2 x 2 mesh", "[curves]") {
  for (const std::string& name : kVariants) {
    const Curve curve("curves", name);
    follows(curve, layout("one rank"), "");
    follows(curve, layout("FSDP 2 x TP 2"), "");
  }
}

TEST_CASE("in bf16 every layout follows the curve of f32 within half a percent", "[curves]") {
  const Curve curve("curves", "untied_matrices");
  for (const Layout& where : usual_layouts()) {
    const Folder folder;
    const std::vector<Step> steps =
        equivalence::train(folder, "run", curve.config, where,
                           "checkpoint.every=0 train.precision=bf16 train.micro_batch=" +
                               std::to_string(where.micro_batch));
    INFO(where.name);
    REQUIRE(steps.size() == curve.json["losses"].size());
    double loss = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      loss = std::max(loss, difference(steps[i].loss, curve.json["losses"][i]));
    }
    CHECK(loss <= 5e-3);
    CHECK(loss > 2e-5);  // it is not f32
  }
}

TEST_CASE("every variant follows PyTorch's curve in every layout", "[.long]") {
  for (const std::string& name : kVariants) {
    follows_everywhere(name);
  }
}

TEST_CASE("tokens of two bytes give the same bits as tokens of four", "[curves]") {
  const Curve curve("curves", "untied_all");
  const Folder folder;
  const Layout& where = layout("one rank");
  const auto wide = equivalence::train(folder, "wide", curve.config, where);
  const std::string narrow = reference("curves/" + curve.json["tokens_u16"].get<std::string>());
  CHECK(equivalence::same_bits(wide, equivalence::train(folder, "narrow", curve.config, where,
                                                        "data.tokens='[\"" + narrow + "\"]'")));
}
