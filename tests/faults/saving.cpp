// Checkpoints when there is no room: the run fails, the last good one stays, nothing half-written.
#include <string>
#include <vector>

#include "catch.hpp"
#include "mount.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

/// The newest checkpoint is the one of `step`, readable, and the only things there are checkpoints.
void last_is_whole(const RunFolder& folder, std::int64_t step) {
  const std::vector<std::string> names = checkpoints(folder / "checkpoints");
  REQUIRE_FALSE(names.empty());
  for (const std::string& name : names) {
    CHECK(name.starts_with("step-"));
    const Result info = run(folder, {"checkpoint", "info", "checkpoints/" + name});
    INFO(name << ": " << info.error);
    CHECK(info.code == 0);
  }
  CHECK(step_after(names.back(), "step-") == step);
}

}  // namespace

TEST_CASE("a full disk while saving is an error and keeps the last checkpoint", "[.root]") {
  const RunFolder folder;
  const Mount disk({.at = folder / "checkpoints", .size = "1m"});
  if (!disk.mounted()) {
    tessera::testing::skip("a small tmpfs cannot be mounted here (it takes root)");
    return;
  }
  // A checkpoint of the small run is some 0.45 MB: the third one does not fit.
  const Result result = run(folder, {"train", "run.toml", "train.steps=50", "checkpoint.every=5"});
  INFO(result.out << result.error);
  CHECK(result.code == 1);
  CHECK(result.left_running == 0);
  CHECK(count(result.error, "error:") == 1);
  CHECK(result.error.find("No space left on device") != std::string::npos);
  CHECK(result.error.find("saving a checkpoint") != std::string::npos);
  CHECK(result.error.find("step ") != std::string::npos);
  const std::int64_t saved =
      5 * static_cast<std::int64_t>(checkpoints(folder / "checkpoints").size());
  CHECK(saved < 50);
  last_is_whole(folder, saved);
}

TEST_CASE("a save that hits the limit of a file's size keeps the last checkpoint") {
  const RunFolder folder;
  REQUIRE(run(folder, {"train", "run.toml", "train.steps=5"}).code == 0);
  const Result result = run(folder, {"train", "run.toml", "train.steps=10", "log.metrics="},
                            {.file_size_limit = 16384});
  INFO(result.out << result.error);
  CHECK(result.code == 1);
  CHECK(result.left_running == 0);
  CHECK(count(result.error, "error:") == 1);
  CHECK(result.error.find("File too large") != std::string::npos);
  CHECK(result.error.find("step 10") != std::string::npos);
  last_is_whole(folder, 5);
}
