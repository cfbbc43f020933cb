// AdamW that throws an error in one rank when a test asks for it: in the update after the file
// stumble-RANK has appeared, which it removes; with `again`, in every update while the file is
// there; with `flip`, it changes a parameter of this rank instead.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.optim;
import tessera.options;
import tessera.plugin;

namespace {

using namespace tessera;

class Stumbling final : public optim::UpdateRule {
 public:
  Stumbling(bool again, bool flip) : again_(again), flip_(flip) {}

  std::vector<optim::StateTensor> states() const override { return inner_->states(); }

  void update(const optim::UpdateGroup& group) override {
    const std::string own = "stumble-" + std::to_string(current_rank());
    std::error_code ignored;
    const bool asked =
        again_ ? std::filesystem::exists(own, ignored) : std::filesystem::remove(own, ignored);
    if (asked && !flip_) {
      fail("Stumbling: a test asked for this error");
    }
    inner_->update(group);
    if (asked) {
      ops::mul_scalar_(group.parameters.front(), 1.0009765625);
    }
  }

 private:
  std::unique_ptr<optim::UpdateRule> inner_ = optim::adamw_rule();
  bool again_;
  bool flip_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<optim::UpdateRule>("Stumbling", [](PluginOptions& options) {
    const bool again = options.flag("again", false);
    return std::make_unique<Stumbling>(again, options.flag("flip", false));
  });
}
