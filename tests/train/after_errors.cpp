// What an error leaves of a step, and the checkpoint that is loaded then.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.collective;
import tessera.optim;
import tessera.parallel;
import tessera.passes;

#include "layouts.hpp"
#include "net.hpp"
#include "replayed_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using namespace train_test;

namespace {

/// What the two ranks tell each other.
struct Moments {
  std::atomic<bool> reads = false;   // the late rank reads what the other one has issued
  std::atomic<bool> loaded = false;  // the other one has loaded a checkpoint
};

/// Holds back the first wait of a rank until the other one has loaded a checkpoint: for half a
/// second, where that one waits for this rank.
class LateReader final : public collective::Observer {
 public:
  explicit LateReader(Moments& moments) : moments_(moments) {}
  void perform(const collective::Activity& activity, const std::function<void()>& run) override {
    if (activity.kind == collective::Activity::Kind::wait && !moments_.reads) {
      for (int i = 0; i < 500 && !moments_.loaded; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      moments_.reads = true;
    }
    run();
  }

 private:
  Moments& moments_;
};

void load_beside_late_reader(bool captured) {
  const Folder folder;
  Moments moments;
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(3);
    Run run(mesh, layout.styles);
    if (captured) {
      run.training.captured().set_enabled(
          true, {.executor = "planned", .passes = graph::default_passes()});
    }
    run.step();
    run.training.checkpoints().save(folder / "run");
    const double expected = run.step().loss;
    run.step();
    run.options.wrong_tokens = true;
    const bool is_late = current_rank() == 1;
    LateReader late(moments);
    std::optional<collective::ObserverScope> scope;
    if (is_late) {
      scope.emplace(late);
    }
    const std::string why = error_of([&] { run.step(); });
    scope.reset();
    check(why.find("embedding") != std::string::npos, why);
    run.options.wrong_tokens = false;
    run.training.checkpoints().load(folder / "run");
    if (!is_late) {
      moments.loaded = true;
      check(moments.reads, "parameters were written while the other rank was to read them");
    }
    check(run.step().loss == expected, "the step after the checkpoint");
  }));
}

}  // namespace

TEST_CASE("a checkpoint is loaded when no rank reads the parameters for a step that has failed") {
  load_beside_late_reader(false);
  load_beside_late_reader(true);
}
