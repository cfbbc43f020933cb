// Trainings with many more ranks than cores.
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

void trains(int ranks, double limit) {
  const RunFolder folder;
  const std::string number = std::to_string(ranks);
  Program program(folder, {"train", "run.toml", "train.steps=2", "train.batch=" + number,
                           "mesh.axes=[\"replicate\"]", "mesh.shape=[" + number + "]",
                           "parallel=[{style=\"Replicate\", axis=\"replicate\", on=[\".\"]}]",
                           "checkpoint.folder=", "checkpoint.every=0"});
  const Result result = program.wait(limit);
  INFO(ranks << " ranks: " << result.seconds << " s\n" << result.out << result.error);
  CHECK(result.code == 0);
  if (ranks < 100) {
    CHECK(result.error.empty());  // no rank waited so long that it was reported
  }
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(2));
}

}  // namespace

TEST_CASE("64 ranks train on any number of cores") { trains(64, 60); }

TEST_CASE("512 ranks train on any number of cores", "[.long]") { trains(512, 300); }

TEST_CASE("a mesh for which the machine has no memory is refused before its ranks start") {
  const RunFolder folder;
  is_refused(
      folder,
      {"train", "run.toml", "train.batch=4096", "mesh.axes=[\"replicate\"]", "mesh.shape=[4096]",
       "parallel=[{style=\"Replicate\", axis=\"replicate\", "
       "on=[\".\"]}]",
       "data.seq_len=8", "model.dim=1024", "model.layers=8", "model.ffn_dim=4096",
       "checkpoint.folder=", "log.metrics="},
      {"launch: 4096 ranks need at least ", "memory"});
}
