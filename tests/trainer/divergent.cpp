// Ranks whose captured programs differ: found before the first step, and said once.
#include <string>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using tessera::testing::count;
using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

/// Two ranks that shard a small model.
Result two_ranks(const std::string& more) {
  const Folder folder;
  const std::string config = folder.write(
      "run.toml", small_model({.heads = 2}) +
                      "[data]\ntext = [\"a.txt\"]\nseq_len = 8\nvalidation = 0.0\n[train]\n"
                      "steps = 3\nbatch = 4\n[optimizer]\nlr = 1e-3\nwarmup = 0\n[mesh]\n"
                      "axes = [\"data\"]\nshape = [2]\n[[parallel]]\nstyle = \"FSDP\"\n"
                      "axis = \"data\"\non = [\"model.layers.*\", \".\"]\n[graph]\n"
                      "capture = true\n[log]\nmetrics = \"\"\n[checkpoint]\nfolder = \"\"\n");
  folder.write("a.txt", std::string(2000, 'x'));
  return run_program("train " + config + " " + more,
                     "TESSERA_PLUGIN_PATH=" TESSERA_SHIPPED_PLUGINS " ");
}

/// The run ends before its first step, with one error that has these words.
void found(const Result& result, const std::string& words) {
  INFO(result.out << result.error);
  CHECK(result.code == 2);
  CHECK(count(result.error, "have different programs") == 1);
  has(result.error, "captured step: rank 0 and rank 1 have different programs: call ");
  has(result.error, words);
  has(result.error, "; give all ranks the same config and plugins");
  CHECK(result.out.find("step 1/3") == std::string::npos);
}

}  // namespace

TEST_CASE("ranks with equal programs run") {
  const Result right = two_ranks("");
  INFO(right.out << right.error);
  CHECK(right.code == 0);
  has(right.out, "3 replayed");
}

TEST_CASE("a pass that gathers less on one rank is found before the first step") {
  const Result result = two_ranks(
      "'graph.passes=[\"lifetimes\",\"gathers_less_on_one_rank\"]' "
      "--plugin " TESSERA_WRONG_PASSES);
  found(result, "\n  rank 0: section 'gradients', instruction ");
  has(result.error, "all_gather_into(");
}

TEST_CASE("a transformation that reduces on one rank is found before the first step") {
  const Result result =
      two_ranks("graph.transforms=[reduces_on_one_rank] --plugin " TESSERA_WRONG_TRANSFORMS);
  found(result, "no such call, after ");
  has(result.error, "  rank 1: section 'update', instruction 1 (");
  has(result.error, "all_reduce(");
}

TEST_CASE("an error of the training names it once") {
  const Result result = two_ranks("optimizer.lr=1e30 train.clip_grad_norm=0 train.steps=40");
  INFO(result.out << result.error);
  CHECK(result.code == 1);
  has(result.error, ": training: step ");
  CHECK(result.error.find("training: training") == std::string::npos);
}
