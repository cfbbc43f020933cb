module;
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import tessera.stores;
import :run_place;
import :save;
import :steps;
import :store_place;

namespace tessera {
namespace checkpoint_detail {
namespace {

namespace fs = std::filesystem;

class FolderPlace final : public RunPlace {
 public:
  explicit FolderPlace(std::string folder) : folder_(std::move(folder)) {}

  /// The nearest folder that exists must be one, and writable. Nothing is made here.
  void check_can_save() const override {
    fs::path at = fs::absolute(folder_).lexically_normal();
    std::error_code ignored;
    while (!fs::exists(at, ignored) && at.has_relative_path()) {
      at = at.parent_path();
    }
    const bool is_folder = fs::is_directory(at, ignored);
    if (!is_folder || ::access(at.c_str(), W_OK | X_OK) != 0) {
      fail_input({.thing = folder_,
                  .wrong = is_folder ? fmt::format("{} cannot be written in ({})", at.string(),
                                                   std::strerror(errno))
                                     : fmt::format("{} is not a folder", at.string()),
                  .advice = "choose another path"});
    }
  }
  /// Keeps the folder in sight as soon as it is there.
  void check() override {
    std::error_code ignored;
    if (!held_ && fs::is_directory(folder_, ignored)) {
      held_ = std::make_shared<const HeldFolder>(folder_);
    }
    if (held_) {
      check_checkpoint_folder(*held_);
    }
  }
  SaveOptions save_options() const override { return {.within = held_}; }
  void prune(int keep) override {
    check();
    if (held_) {
      prune_checkpoints(*held_, keep);
    }
  }
  std::string rescue_folder() const override { return ""; }

 private:
  std::string folder_;
  std::shared_ptr<const HeldFolder> held_;
};

class StorePlace final : public RunPlace {
 public:
  explicit StorePlace(stores::Address address) : address_(std::move(address)) {
    static_cast<void>(stores::OpenWritableStore(address_));
  }

  /// An object is written, read and removed.
  void check_can_save() const override {
    stores::OpenWritableStore store(address_);
    const std::string name = SaveAttempt().text() + ".check";
    constexpr std::string_view text = "Tessera: can checkpoints be saved here?\n";
    store.put(name, std::as_bytes(std::span(text)));
    const std::string back = store.text(name, text.size());
    store.remove(name);
    if (back != text) {
      fail_input({.thing = address_.text(),
                  .wrong = "it does not give back what was written",
                  .advice = "choose another store"});
    }
  }
  void check() override {}  // nothing is kept of it: a save finds out by itself
  SaveOptions save_options() const override { return {}; }
  void prune(int keep) override { prune_stored(address_, keep); }
  /// In the folder where the run began: "run.unsaved" for s3://bucket/run.
  std::string rescue_folder() const override {
    const fs::path name = fs::path(address_.rest()).lexically_normal();
    const fs::path last = name.has_filename() ? name.filename() : name.parent_path().filename();
    return last.string() + ".unsaved";
  }

 private:
  stores::Address address_;
};

}  // namespace
}  // namespace checkpoint_detail

RunPlace::~RunPlace() = default;

std::unique_ptr<RunPlace> RunPlace::named(const std::string& text) {
  if (std::optional<stores::Address> address = checkpoint_detail::address_of(text)) {
    return std::make_unique<checkpoint_detail::StorePlace>(std::move(*address));
  }
  return std::make_unique<checkpoint_detail::FolderPlace>(text);
}

}  // namespace tessera
