// Preferences against the stored curves of trl (tests/reference/dpo_curves.py), on every layout; a
// run that is continued; what is refused.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

using Catch::Contains;
using equivalence::Folder;
using equivalence::Layout;
using equivalence::layout;
using equivalence::reference;

namespace {

using Json = nlohmann::json;

const std::vector<std::string> measures = {"rewards/chosen", "rewards/rejected", "rewards/margins",
                                           "rewards/accuracies"};

Json curve_of(const std::string& name) {
  return Json::parse(equivalence::read_file(reference("dpo/" + name + ".json")));
}

std::string config_of(const Json& curve) {
  const std::string records = reference("dpo/" + curve["records"].get<std::string>());
  return "[model]\nfrom = \"" + reference("sft/initial") + "\"" +
         (curve.contains("rank") ? "\nadapter = \"" + reference("sft/adapter") + "\"" : "") +
         "\n[data]\njsonl = [\"" + records + ".jsonl\"]\nvalidation_files = [\"" + records +
         "-held-out.jsonl\"]\nvalidate_every = 0\norder = \"sequential\"\nseq_len = " +
         curve["seq_len"].dump() +
         "\n[train]\nobjective = \"dpo\"\nsteps = " + curve["steps"].dump() +
         "\nbatch = " + curve["batch"].dump() +
         "\nclip_grad_norm = 1.0\n[dpo]\nbeta = " + curve["beta"].dump() +
         "\nreference = " + curve["reference"].dump() +
         "\n[optimizer]\nlr = " + curve["lr"].dump() +
         "\noptions = { betas = " + curve["betas"].dump() + ", eps = 1e-8 }\nweight_decay = 0.0\n";
}

/// One of layouts(), or two stages, of which each micro-batch is a pair.
Layout spread_over(const std::string& where) {
  const std::string stages = "[[parallel]]\nstyle = \"Pipeline\"\naxis = \"pipe\"\non = [\".\"]\n";
  const auto mesh = [](const std::string& axes, const std::string& shape) {
    return "[mesh]\naxes = [" + axes + "]\nshape = [" + shape + "]\n";
  };
  if (where == "2 stages") {
    return {where, mesh("\"pipe\"", "2") + stages, 1};
  }
  if (where == "2 stages x FSDP 2") {
    return {where,
            mesh("\"pipe\", \"shard\"", "2, 2") + stages +
                "[[parallel]]\nstyle = \"FSDP\"\naxis = \"shard\"\non = "
                "[\"model.layers.*\", \".\"]\n",
            1};
  }
  return layout(where);
}

std::string updates_of(const Json& curve) {
  return curve.contains("rank")
             ? "[[parallel]]\nstyle = \"LoRA\"\non = "
               "[\"model.layers.*.{self_attn,mlp}.*_proj\"]\noptions = { rank = " +
                   curve["rank"].dump() + ", alpha = " + curve["alpha"].dump() + " }\n"
             : "";
}

/// The lines of the run's metrics file.
std::vector<Json> train(const Folder& folder, const std::string& name, const Json& curve,
                        const std::string& where, const std::string& overrides) {
  Layout spread = spread_over(where);
  spread.config += updates_of(curve);
  equivalence::train(folder, name, config_of(curve), spread, overrides);
  std::istringstream file(equivalence::read_file(folder / (name + ".jsonl")));
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

double distance(const Json& a, const Json& b) {
  return std::abs(a.get<double>() - b.get<double>());
}

void follows(const Json& curve, const std::string& where, const std::string& overrides) {
  INFO(curve["name"] << " on " << where << " " << overrides);
  const Folder folder;
  const std::vector<Json> lines =
      train(folder, "run", curve, where, "checkpoint.folder= " + overrides);
  REQUIRE(lines.size() == curve["losses"].size());
  double loss = 0;
  double norm = 0;
  double measured = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    loss = std::max(loss, distance(lines[i]["loss"], curve["losses"][i]));
    norm = std::max(norm, distance(lines[i]["grad_norm"], curve["grad_norms"][i]));
    for (const std::string& name : measures) {
      measured = std::max(measured, distance(lines[i][name], curve[name][i]));
    }
  }
  CHECK(loss <= 1e-4);
  CHECK(norm <= 1e-3);
  CHECK(measured <= 1e-4);
  CHECK(distance(lines.back()["validation_loss"], curve["validation_loss"]) <= 1e-4);
  for (const std::string& name : measures) {
    CHECK(distance(lines.back()["validation_" + name], curve["validation_" + name]) <= 1e-4);
  }
}

/// The error of a run with these overrides, which begins no step.
std::string refusal(const Json& curve, const std::string& overrides) {
  const Folder folder;
  const std::string config = folder.write("run.toml", config_of(curve) + updates_of(curve));
  const equivalence::Result result = equivalence::run("train '" + config + "' " + overrides);
  CHECK(result.code == 2);
  CHECK(result.out.find("step ") == std::string::npos);
  return result.error;
}

}  // namespace

TEST_CASE("preferences follow trl's curves", "[dpo]") {
  for (const std::string name : {"full", "adapter_off", "adapter_copy"}) {
    const Json curve = curve_of(name);
    follows(curve, "one rank", "");
    follows(curve, "FSDP 2 x TP 2 with sequence and loss parallel", "graph.capture=true");
  }
}

TEST_CASE("preferences follow trl's curves in micro-batches, captured and not", "[dpo]") {
  const Json curve = curve_of("full");
  follows(curve, "one rank", "graph.capture=true train.micro_batch=1");
  follows(curve, "FSDP 2 x TP 2", "train.micro_batch=1");
}

TEST_CASE("preferences follow trl's curves in stages, with and without an adapter", "[dpo]") {
  follows(curve_of("full"), "2 stages", "train.micro_batch=1");
  follows(curve_of("adapter_off"), "2 stages", "train.micro_batch=1 graph.capture=true");
  follows(curve_of("adapter_copy"), "2 stages x FSDP 2", "train.micro_batch=1 graph.capture=true");
}

TEST_CASE("preferences follow trl's curves in further layouts", "[.long]") {
  for (const std::string name : {"full", "adapter_off", "adapter_copy"}) {
    const Json curve = curve_of(name);
    for (const char* where : {"FSDP 2", "FSDP 4", "Replicate 2", "TP 2", "FSDP 2 x TP 2"}) {
      follows(curve, where, "");
      follows(curve, where, "graph.capture=true graph.across_steps=true");
      follows(curve, where, "train.activation_checkpointing=true");
    }
  }
}

TEST_CASE("smoothed labels take a share of the pairs to be exchanged", "[dpo]") {
  Json curve = curve_of("adapter_off");
  curve["steps"] = 1;
  const Folder folder;
  const auto lines = train(folder, "run", curve, "one rank",
                           "checkpoint.folder= dpo.label_smoothing=0.3 data.validation_files='[]'"
                           " data.validation=0");
  // -log sigmoid(-m) = -log sigmoid(m) + m
  const double expected =
      curve["losses"][0].get<double>() + 0.3 * curve["rewards/margins"][0].get<double>();
  CHECK(std::abs(lines[0]["loss"].get<double>() - expected) <= 1e-5);
  CHECK(std::abs(expected - curve["losses"][0].get<double>()) > 1e-2);
}

TEST_CASE("a run of preferences is continued exactly, on another mesh too", "[dpo]") {
  for (const std::string name : {"full", "adapter_off"}) {
    Json curve = curve_of(name);
    curve["steps"] = 6;
    const Folder folder;
    const auto whole = train(folder, "whole", curve, "FSDP 2", "checkpoint.every=3");
    const std::string from =
        "checkpoint.resume='" + equivalence::checkpoint(folder, "whole", 3) + "'";
    const auto same = train(folder, "same", curve, "FSDP 2", "graph.capture=true " + from);
    const auto other = train(folder, "other", curve, "FSDP 2 x TP 2", from);
    REQUIRE(whole.size() == 6);
    REQUIRE(same.size() == 3);
    REQUIRE(other.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      for (const std::string& key : {std::string("loss"), measures[0], measures[1], measures[3]}) {
        CHECK(same[i][key] == whole[i + 3][key]);
        CHECK(distance(other[i][key], whole[i + 3][key]) <= 1e-5);
      }
    }
  }
}

TEST_CASE("what preferences cannot be combined with is refused before a step", "[dpo]") {
  const Json full = curve_of("full");
  CHECK_THAT(refusal(full, "dpo.reference=adapter_off"),
             Contains("dpo.reference") && Contains("no low-rank updates"));
  CHECK_THAT(refusal(full, "data.packing=documents"),
             Contains("data.packing") && Contains("rows of their own"));
  CHECK_THAT(refusal(full, "data.train_on=all"), Contains("data.train_on"));
  CHECK_THAT(refusal(full, "graph.capture=true graph.mode=replicate"), Contains("graph.mode"));
  CHECK_THAT(refusal(full, "train.objective=next_token"),
             Contains("dpo.beta: only train.objective=dpo has it"));
  const std::string chats = "data.jsonl='[\"" + reference("sft/chats.jsonl") + "\"]'";
  CHECK_THAT(refusal(full, chats), Contains("chats.jsonl:1: the record does not compare answers"));
}
