// Changes in a run that replace modules, and what is refused before the ranks start.
#include <string>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

Result run(const std::string& name, const std::string& more = "data.validation=0.0") {
  const Folder folder;
  const std::string config = folder.write(
      "run.toml", small_model({.heads = 2}) +
                      "[data]\ntext = [\"a.txt\"]\nseq_len = 8\nvalidation = 0.1\n[train]\n"
                      "steps = 3\nbatch = 4\n[optimizer]\nlr = 1e-3\nwarmup = 0\n[graph]\n"
                      "capture = true\n[log]\nmetrics = \"\"\n[checkpoint]\nfolder = \"\"\n");
  folder.write("a.txt", std::string(2000, 'x'));
  return run_program("train " + config + " graph.transforms=[" + name +
                         "] --plugin " TESSERA_WRONG_OVERRIDES " " + more,
                     "TESSERA_PLUGIN_PATH=" TESSERA_SHIPPED_PLUGINS " ");
}

void refused(const Result& result, int code, const std::string& words) {
  INFO(result.out << result.error);
  CHECK(result.code == code);
  has(result.error, words);
  CHECK(result.out.find("step 1/3") == std::string::npos);
  CHECK(result.error.find("rank 0") == std::string::npos);  // before the ranks start
}

}  // namespace

TEST_CASE(
    "a change that replaces modules is in graph.transforms, and every step is taken with it") {
  const Result right = run("right");
  INFO(right.out << right.error);
  CHECK(right.code == 0);
  has(right.out, "steps: 3 replayed");
  CHECK(run("right", "").code == 0);  // it says that validations are right
  const Result plain = run("", "data.validation=0.0");
  const auto loss = [](const std::string& out) { return out.substr(out.find("step 3/3"), 22); };
  CHECK(loss(plain.out) != loss(right.out));
}

TEST_CASE("a validation that would compute another model is refused") {
  CHECK(run("unclear").code == 0);
  refused(run("unclear", ""), 2,
          "data.validation: a validation computes the model as it is written, and steps compute "
          "what change 'unclear' has replaced; set data.validation=0");
}

TEST_CASE("facts that a change does not keep are refused, or found where they show",
          "[unverified]") {
  refused(run("does_nothing"), 1, "change 'does_nothing': it has no function");
  refused(run("", "data.validation=0.0 graph.passes=[right]"), 2,
          "graph.passes: 'right' is no pass: it replaces modules, before distribution; name it in "
          "graph.transforms");
  // One that says that it keeps bits: steps are compared with those of the model as it is written.
  CHECK(run("says_same", "data.validation=0.0").code == 0);
  const Result found = run("says_same", "data.validation=0.0 graph.verify=1");
  INFO(found.out << found.error);
  CHECK(found.code == 1);
  has(found.error, "as it is written");
}

TEST_CASE("a plugin of a kind that is gone is named with the line to change") {
  const Result old = run("MeanLoss", "data.validation=0.0 --plugin " TESSERA_OLD_KINDS);
  refused(old, 2, "OldKinds.so: is refused: pass 'Trim': the kind 'pass' is 'change' now; write ");
  has(old.error, "write 'KIND change' instead of 'KIND transform'");
}

TEST_CASE("changes that do not fit are refused before the ranks start") {
  refused(run("adds_parameters"), 2,
          "captured step: input 'optimizer.exp_avg.model.layers.0.input_layernorm.bias': the model "
          "as it is written has none of this name");
  refused(run("replaces_nothing"), 2,
          "change 'replaces_nothing': it replaces no module of this model");
  refused(run("leaves_anchors"), 2,
          "anchor 'wrong_norm': nothing was put in its place in section 'gradients', instruction ");
  refused(run("misnamed_override"), 1,
          "change 'misnamed_override': its plugin returned one of another name (expected "
          "'misnamed_override', got 'another')");
  refused(run("rigt"), 2, "graph.transforms: there is no change 'rigt'");
  has(run("rigt").error, "AccumulatingProducts, adds_parameters, ");
  refused(run("right", "data.validation=0.0 graph.capture=false"), 2,
          "only captured steps can be changed; set graph.capture=true");
}
