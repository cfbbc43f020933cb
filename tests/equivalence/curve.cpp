#include "curve.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"

namespace equivalence {
namespace {

/// What PyTorch's own rounding moves a gradient norm by: its float32 run against its float64 run,
/// and where one run says too little, several from weights that differ by a rounding.
double own_rounding(const Curve& curve) {
  double largest = curve.json.value("largest_grad_norm_rounding", 0.0);
  for (std::size_t i = 0; i < curve.json["grad_norms"].size(); ++i) {
    largest =
        std::max(largest, difference(curve.json["grad_norms"][i], curve.json["grad_norms_f64"][i]));
  }
  return largest;
}

}  // namespace

Curve::Curve(const std::string& folder, const std::string& name)
    : json(nlohmann::json::parse(read_file(reference(folder + "/" + name + ".json")))) {
  const auto& data = json["data"];
  const auto& optimizer = json["optimizer"];
  const auto& schedule = json["schedule"];
  const std::string decay = optimizer["decay"];
  config =
      "[model]\nfrom = \"" + reference(folder + "/" + json["initial_model"].get<std::string>());
  config += "\"\n[data]\ntokens = [\"" + reference("curves/" + json["tokens"].get<std::string>());
  config += "\"]\nvalidation = 0.0\norder = " + data["order"].dump();
  config += "\nseq_len = " + data["seq_len"].dump();
  config += "\n[train]\nsteps = " + json["steps"].dump() + "\nbatch = " + data["batch"].dump();
  config += "\nclip_grad_norm = " + optimizer["clip_grad_norm"].dump();
  config += "\n[optimizer]\nname = " + optimizer["name"].dump();
  config +=
      "\nlr = " + optimizer["lr"].dump() + "\noptions = { betas = " + optimizer["betas"].dump();
  config += ", eps = " + optimizer["eps"].dump() + " }";
  config += "\nweight_decay = " + optimizer["weight_decay"].dump();
  if (decay != "none") {
    config += "\ndecay = \"" + decay + "\"";
  }
  if (schedule["name"] == "warmup_cosine") {
    config += "\nschedule = \"cosine\"\nwarmup = " + schedule["warmup_steps"].dump();
    config += "\nmin_lr_ratio = " + schedule["min_ratio"].dump();
  }
  config += "\n";
}

void follows(const Curve& curve, const Layout& where, const std::string& overrides) {
  INFO(curve.json["name"] << " on " << where.name << " " << overrides);
  const Folder folder;
  const std::vector<Step> steps =
      train(folder, "run", curve.config, where, "checkpoint.every=0 " + overrides);
  REQUIRE(steps.size() == curve.json["losses"].size());
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    loss = std::max(loss, difference(steps[i].loss, curve.json["losses"][i]));
    grad_norm =
        std::max(grad_norm, difference(steps[i].grad_norm, curve.json["grad_norms_f64"][i]));
    lr = std::max(lr, difference(steps[i].lr, curve.json["lr"][i]));
  }
  CHECK(loss <= 2e-5);
  CHECK(grad_norm <= 2e-5 + own_rounding(curve));
  CHECK(lr <= 1e-12);
}

}  // namespace equivalence
